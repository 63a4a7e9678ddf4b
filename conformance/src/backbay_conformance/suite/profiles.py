"""The suite's version, and its profiles: each case and scenario belongs to one, and a run selects some."""

from __future__ import annotations

PROFILES = ("core", "quant", "attention", "cache", "graph", "memory", "errors", "large")
STANDARD = tuple(profile for profile in PROFILES if profile != "large")
"""The default profiles of a run: all but `large`, which takes gigabytes."""


def check_profile(profile: str, declared: str) -> None:
    """ValueError for an unknown profile of a case or scenario, described by `declared`."""
    if profile not in PROFILES:
        raise ValueError(f"{declared}: no profile {profile!r}; the profiles are {', '.join(PROFILES)}")


SUITE_VERSION = "1.2"
"""The version in certificates and replay files; only the version that wrote a replay file can replay it."""

FIRST_ROUND = 9
"""The calls that a case gets before any other gets more; they combine each mode with each float type."""

WORKER = "backbay-conformance-"
"""How the name of a worker's own folder for temporary files begins."""
