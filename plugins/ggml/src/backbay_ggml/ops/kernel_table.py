"""The table of this backend's lowerings: op to a function of the builder and the op's own parameters."""

from __future__ import annotations

from backbay import KernelTable

kernel = KernelTable(skip=1)
