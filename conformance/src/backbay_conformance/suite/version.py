"""The version of the suite."""

from __future__ import annotations

SUITE_VERSION = "1.0"
"""Named by certificates and by replay files: a file can be replayed by the version that wrote it."""
