"""The table of kernels: each lowers one op, by functions of the builder."""

from __future__ import annotations

from backbay import KernelTable

kernel = KernelTable(skip=1)
