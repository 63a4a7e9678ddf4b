"""Sums and means over dimension 0."""

from __future__ import annotations

from backbay import ops

from .elementwise import unary

for _op in (ops.sum_rows, ops.mean, ops.cumsum):
    unary(_op)
