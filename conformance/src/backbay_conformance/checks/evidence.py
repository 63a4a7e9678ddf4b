"""The operands at a wrong element of a result, as a line of a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from backbay import Op, ops

from ..draw.operand import Operand
from ..numbers.rounding import Array
from ..suite.case import Call

MOST = 4
"""The numbers of a row that a message shows."""

Index = tuple[int | None, ...]
"""An index by dimension, dimension 0 first; None stands for the whole of dimension 0."""

PRODUCTS = (ops.mulmat, ops.mulmat_full_prec)
OF_ROWS: frozenset[Op[Any, Any]] = frozenset(
    {
        ops.softmax,
        ops.layer_norm,
        ops.rms_norm,
        ops.l2_norm,
        ops.sum_rows,
        ops.mean,
        ops.variance,
        ops.stddev,
        ops.cumsum,
    }
)
"""The ops whose results depend on a whole row."""


def operands_at(call: Call, place: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """The elements or rows that the result's element at an array index depends on; empty if they are many.

    `shape` is the shape of the result's array, with reversed extents.
    """
    named = zip([parameter.name for parameter in call.op.parameters], call.args, strict=True)
    operands = {name: value for name, value in named if isinstance(value, Operand)}
    if any(operand.raw is None for operand in operands.values()):
        return ""
    at = place[::-1]
    shown = [_shown(name, operand, at) for name, operand, at in _pieces(call, operands, at, shape[::-1])]
    return "\n  with " + "; ".join(shown) if shown else ""


def _pieces(
    call: Call, operands: dict[str, Operand], at: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[tuple[str, Operand, Index]]:
    """Each operand that can be shown, with the index of its element or row."""
    if call.op in PRODUCTS:
        (first, w), (second, x) = operands.items()
        yield first, w, (None, at[0], *[_grouped(at, shape, w, n) for n in range(2, len(w.shape))])
        yield second, x, (None, *at[1 : len(x.shape)])
        return
    if call.op is ops.rows:
        (first, table), (second, ids) = operands.items()
        yield second, ids, at[1:]
        row = int(ids.decoded[at[:0:-1]])
        yield first, table, (at[0], row, *[_wrapped(at, table, n) for n in range(2, len(table.shape))])
        return
    if call.op is ops.set_rows:
        (_, _), (first, source), (second, ids) = operands.items()
        written = np.argwhere(ids.decoded == at[1]) if len(ids.shape) == 1 else np.empty((0, 1))
        for (row,) in written[:1].tolist():
            yield second, ids, (row,)
            yield first, source, (at[0], row, *at[2:])
        return
    for name, operand in operands.items():
        if _repeats_to(operand, shape, whole=call.op in OF_ROWS):
            index = tuple(_wrapped(at, operand, n) for n in range(len(operand.shape)))
            own = not index or len(index) < len(shape) or operand.shape[1:] != shape[1:]
            yield name, operand, index if own or call.op not in OF_ROWS else (None, *index[1:])


def _grouped(at: tuple[int, ...], shape: tuple[int, ...], w: Operand, n: int) -> int:
    """The slice of a product's first operand, which consecutive groups of slices share."""
    return at[n] // max(1, shape[n] // w.shape[n]) if n < len(at) else 0


def _wrapped(at: tuple[int, ...], operand: Operand, n: int) -> int:
    return at[n] % operand.shape[n] if n < len(at) else 0


def _repeats_to(operand: Operand, shape: tuple[int, ...], *, whole: bool) -> bool:
    """Whether the operand, repeated, has the shape of the result, of which dimension 0 may be summed."""
    extents = (*shape, 1, 1, 1, 1)
    return all(
        extent and (extents[n] % extent == 0 or (n == 0 and whole)) for n, extent in enumerate(operand.shape)
    )


def _shown(name: str, operand: Operand, at: Index) -> str:
    where = ", ".join(":" if index is None else str(index) for index in at)
    key = tuple(slice(None) if index is None else index for index in reversed(at))
    return f"{name}[{where}] = {_numbers(operand.decoded[key])}"


def _numbers(found: Array) -> str:
    flat = found.reshape(-1)
    more = f" ... ({flat.size})" if flat.size > MOST else ""
    return " ".join(f"{number:.9g}" for number in flat[:MOST].tolist()) + more
