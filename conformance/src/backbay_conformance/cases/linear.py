"""Cases of diagonals, triangles and triangular systems."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import Made, Making, Numbers
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.encoding import Array, encode
from ..numbers.number import Number, concatenate
from ..suite.case import Args, Call, builder, case


@case(ops.diag)
def diag(draw: Draw) -> Call:
    outer = draw.sides(draw.below(3), 6)
    shape = (draw.side(33), 1, *outer) if outer or draw.flag() else (draw.side(65),)
    large = (257,), (130, 1, 2), (1030,), (0, 1, 2), (3, 1, 0), (2, 1, 300), (3, 1, 1, 300)
    shape = draw.listed(*large) or shape
    if draw.on_turn(5, 29):
        shape = ()
    x = draw.floats(shape, Numbers("0nisb"))
    return diag_call((x,))


@builder(ops.diag)
def diag_call(args: Args) -> Call:
    return Call(args, partial(diagonal, args[0].dtype))


def diagonal(dtype: DType, x: Number) -> Array:
    values = x.value if x.value.ndim > 1 else x.value.reshape(1, -1)
    n = values.shape[-1]
    full = np.zeros((*values.shape[:-2], n, n))
    full[..., np.arange(n), np.arange(n)] = values[..., 0, :]
    return encode(full, dtype)


@case(ops.tri)
def tri(draw: Draw) -> Call:
    n, outer = draw.side(33), draw.sides(draw.below(3), 6)
    if draw.flag(8):  # more than fit in a byte
        n, outer = draw.pick(257, 130), ()
    n, outer = draw.listed((1030, ()), (2, (300,)), (3, (1, 300)), (64, (3, 5)), (520, (2,))) or (n, outer)
    shape = () if draw.on_turn(5, 29) else (n, n, *outer)
    n = n if shape else 1
    x = draw.floats(shape, Numbers("0nisb"))
    kind = draw.by_turn("lower-diag", "lower", "upper-diag", "upper")
    other = {"kind": draw.pick(*CUT)} if draw.flag(4) else {}
    return tri_call((x, kind), altered=other)


@builder(ops.tri)
def tri_call(args: Args, **relations: Any) -> Call:
    return Call(args, partial(triangle, args[0].dtype), **relations)


CUT = {"lower-diag": (np.tril, 0), "lower": (np.tril, -1), "upper-diag": (np.triu, 0), "upper": (np.triu, 1)}


def triangle(dtype: DType, x: Number, kind: str) -> Array:
    function, k = CUT[kind]
    shape = x.value.shape[-2:] or (1, 1)
    return encode(np.where(function(np.ones(shape, bool), k), x.value, 0).reshape(x.shape), dtype)


def system(making: Making, operand: Operand, *, lower: bool, unit: bool) -> Array:
    """Well-conditioned matrices, with junk in the triangle that must not be read."""
    n, size = operand.shape[0], int(np.prod(operand.shape, dtype=np.int64))
    a: Array = making.rng.uniform(-1, 1, (size // max(1, n * n), n, n)) / max(1, n / 2)
    if making.exact:
        a = making.rng.integers(-1, 2, a.shape) * (making.rng.random(a.shape) < 0.1).astype(np.float64)
    a[:, np.arange(n), np.arange(n)] = making.rng.choice([1.0, -2.0, 0.5, 4.0], (a.shape[0], n))
    if making.mode == "special":
        read = np.tri(n, k=-1 if unit else 0, dtype=bool)
        a = np.where(read if lower else read.T, a, making.rng.choice([np.nan, np.inf, 0.0], a.shape))
    return a


@case(ops.solve_tri)
def solve_tri(draw: Draw) -> Call:
    n, m, outer = draw.side(20), draw.side(20), draw.sides(draw.below(3), 6)
    if draw.flag(8):  # larger than the tile that a group of threads solves at once
        n, m, outer = draw.pick(65, 33, 130), draw.pick(1, 3), ()
    large = (300, 2, ()), (3, 520, ()), (64, 64, (2,)), (4, 3, (300,)), (2, 3, (1, 300)), (128, 33, ())
    n, m, outer = draw.listed(*large) or (n, m, outer)
    lower, left = draw.by_turn(True, False), draw.by_turn(True, False, each=2)
    unit = draw.by_turn(False, True, each=4)
    fill = Made(partial(system, lower=lower, unit=unit))
    a = draw.floats((n, n, *outer), fill, dtype=draw.other_float())
    shape = (m, n, *outer) if left else (n, m, *outer)
    b = draw.floats(shape, Numbers("0n", low=-64, high=64, most=3, few=True))
    return Call((a, b, lower, left, unit), solved, exact=False, doubled=(False, True))


def solved(a: Number, b: Number, lower: bool, left: bool, unit: bool) -> Number:
    def turned(x: Number) -> Number:
        return x.moved(lambda v: v.swapaxes(-1, -2))

    if not left:
        return turned(solved(turned(a), turned(b), not lower, True, unit))
    n = a.shape[-1]
    rows: dict[int, Number] = {}
    for i in range(n) if lower else reversed(range(n)):
        y = b[..., i : i + 1, :]
        known = sorted(rows)
        if known:  # the right side is one more term of the sum, in any order
            one = Number(np.ones((*y.shape[:-2], 1, 1)), 0.0, y.cost)
            terms = concatenate([one, -a[..., i : i + 1, known]], -1)
            above = concatenate([y, *(rows[t] for t in known)], -2)
            y = terms.einsum("...ij,...jk->...ik", above, len(known) + 1)
        rows[i] = y if unit else y / a[..., i : i + 1, i : i + 1]
    return concatenate([rows[i] for i in range(n)], -2) if n else b
