"""The version of the suite."""

from __future__ import annotations

SUITE_VERSION = "1.1"
"""The version in certificates and replay files; only the version that wrote a replay file can replay it."""
