"""The profiles of the suite: what a case or a scenario belongs to, and what a run is told to try."""

from __future__ import annotations

PROFILES = ("core", "quant", "attention", "cache", "graph", "memory", "errors", "large")
STANDARD = tuple(profile for profile in PROFILES if profile != "large")
"""What runs unless profiles are named: `large` takes gigabytes."""


def check_profile(profile: str, declared: str) -> None:
    """ValueError for a profile that no run would ever take; `declared` is what was put into it."""
    if profile not in PROFILES:
        raise ValueError(f"{declared}: no profile {profile!r}; the profiles are {', '.join(PROFILES)}")
