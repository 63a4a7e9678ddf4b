"""Cases of matrix products, dense and by expert, of diagonals, triangles, and triangular systems."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backbay import DType, ops

from ..draw.data import ComputedNumbers, FillContext, Integers, Numbers
from ..draw.draw import PAST, Draw
from ..draw.operand import Operand, longer
from ..numbers.encoding import Array, encode
from ..numbers.number import Number, concatenate
from ..suite.case import Args, Call, builder, case


def rank4(x: Number) -> Number:
    return x.reshape(*(1,) * (4 - len(x.shape)), *x.shape)


def product(w: Number, x: Number) -> Number:
    """y[i,j,a,b] = sum over k of w[k,i,a // ra,b // rb] * x[k,j,a,b]."""
    w, x, shape = w.weight(), x.activation(), x.shape
    w4, x4 = rank4(w), rank4(x)
    for axis in (0, 1):
        index = np.arange(x4.shape[axis]) // max(1, x4.shape[axis] // max(1, w4.shape[axis]))
        w4 = w4.moved(lambda a, axis=axis, index=index: np.take(a, index, axis))  # type: ignore[misc]
    y = w4.einsum("bank,bamk->bamn", x4, w4.shape[3])
    return y.reshape(*shape[:-1], w4.shape[2])


Extents = tuple[tuple[int, int, int], tuple[int, ...], tuple[int, ...]]
LARGE: tuple[Extents, ...] = (
    ((4096, 3, 40), (), ()),
    ((33, 5, 2), (2,), (16,)),
    ((4097, 2, 33), (), ()),
    ((64, 3, 2), (1,), (12,)),
    ((576, 4, 1), (1, 2), (16, 6)),
    ((8192, 5, 9), (), ()),
    ((128, 40, 3), (4,), (32,)),
    ((5120, 33, 1), (), ()),
    ((11008, 2, 17), (), ()),
    ((80, 130, 65), (), ()),
    ((4, 3, 2), (), (257,)),
    ((5, 3, 2), (1, 3), (2, 771)),
    ((2, 1, 3), (PAST,), (PAST,)),
    ((3, 2, 1), (1, 1), (1, PAST)),
    ((2, 3, 1), (1, 2), (3, 600)),
    ((4500, 2, 3), (), ()),
    ((33000, 2, 1), (), ()),
    ((5, 3, 2), (2, 2), (4, 6)),
)
"""Sizes of models: k, n and m, and the slices of weight and activations. Long sums, groups of 6 to 16, and groups in both
dimensions.
"""
LARGE_BLOCKS: tuple[Extents, ...] = (
    ((4096, 3, 17), (), ()),
    ((256, 5, 2), (2,), (16,)),
    ((5120, 2, 40), (), ()),
    ((512, 65, 33), (), ()),
    ((256, 3, 1), (1,), (12,)),
    ((8192, 4, 1), (), ()),
    ((256, 130, 5), (), ()),
    ((256, 2, 1), (3,), (771,)),
    ((256, 3, 2), (1, 1), (2, 300)),
    ((5376, 3, 2), (), ()),
    ((256, 4100, 1), (), ()),
    ((11008, 3, 1), (), ()),
    ((18944, 2, 2), (), ()),
    ((1792, 5, 1), (), ()),
    ((14336, 2, 1), (), ()),
    ((256, 3, 2), (2, 2), (6, 4)),
)


def mulmat_call(draw: Draw, wtype: DType, xtype: DType) -> Call:
    unit = wtype.block_size
    if unit > 1:
        k = unit * draw.pick(1, 2, 3, 5) if unit < 256 else unit * draw.pick(1, 2, 3, 5, 7)
        n, m = draw.side(40), draw.side(40)
    else:
        k, n, m = draw.sides(3, 16000)
        if draw.on_turn(7, 12):  # by turn, not by chance: an empty sum must write 0, not leave old memory
            k = 0
    outer = draw.pick((), (), (2,), (3, 2), (1, 2))
    groups = tuple(extent * draw.pick(1, 2, 3) for extent in outer)
    if k * (n + m) * int(np.prod(groups)) > 60000:
        outer = groups = ()
    large = draw.listed(*(LARGE if unit == 1 else LARGE_BLOCKS))
    (k, n, m), outer, groups = large or ((k, n, m), outer, groups)
    small, wide = (Numbers("n", terms=k, most=most, few=True) for most in (7, 4095))
    w = draw.operand(wtype, (k, n, *outer), draw.fill(small, wide))
    fill = Numbers(terms=k, partner=w)
    if unit == 1:
        fill = Numbers("n", terms=k, partner=w, most=4095, few=True, loud=True)
    x = draw.floats((k, m, *groups), fill, dtype=xtype, activated=True)
    call = Call((w, x), product, batch=(None, 1), batch_out=1, doubled=(True, True))
    if wtype.is_float and draw.flag():  # zeros at the end of both rows add nothing
        extra = draw.integer(1, 33)
        call.padded = Call((longer(w, extra, 0.0), longer(x, extra, 0.0)), product), lambda raw: raw
    return call


def dense(draw: Draw) -> Call:
    return mulmat_call(draw, draw.float_dtype(), draw.pick(DType.F32, draw.other_float()))


def quantized(draw: Draw) -> Call:
    return mulmat_call(draw, draw.quantized_dtype(), draw.pick(DType.F32, DType.F32, DType.F16))


for op in (ops.mulmat, ops.mulmat_full_prec):
    case(op, weight=1.5)(dense)
    case(op, "quant", weight=1.5)(quantized)


def by_expert(w: Number, x: Number, ids: Array) -> Number:
    w, x = w.weight(), x.activation()
    experts = w.reshape(*(1,) * (3 - len(w.shape)), *w.shape)  # (experts, n, k)
    chosen = ids.reshape(-1, *ids.shape[-1:])  # (tokens, used)
    chosen = chosen if chosen.ndim == 2 else chosen.reshape(1, 1)
    tokens = x.reshape(*(1,) * (3 - len(x.shape)), *x.shape)
    tokens = tokens.moved(lambda a: np.broadcast_to(a, (*chosen.shape, a.shape[-1])))
    return experts[chosen].einsum("tunk,tuk->tun", tokens, experts.shape[2])


EXPERTS = (
    # experts, used, tokens, k, n
    (128, 8, 3, 33, 5),
    (64, 6, 33, 40, 5),
    (128, 8, 40, 33, 5),
    (32, 4, 257, 40, 5),
    (16, 16, 2, 33, 5),
    (1, 1, 65, 40, 5),
    (60, 4, 1, 33, 5),
    (4, 1, 4100, 33, 5),
    (4, 2, 3, 2880, 33),
    (3, 1, 2, 4097, 2),
    (8, 2, 1, 64, 1030),
    (5, 2, 40, 520, 65),
    (512, 10, 2, 40, 3),
    (2, 300, 3, 32, 4),
)
"""Routes of models, long rows, many rows, and more experts and slots than fit in a byte."""


def expert_call(draw: Draw, wtype: DType) -> Call:
    unit = wtype.block_size
    # many experts only if rows are short
    experts = draw.integer(1, 9) if unit > 1 else draw.many(*range(1, 10))
    k = unit * draw.pick(1, 2, 3) if unit > 1 else draw.side(129)
    n = draw.side(33 if experts < 10 else 3)
    used, tokens = draw.integer(1, 4), 0 if draw.flag(20) else draw.pick(1, 2, 5, 17, 33)
    experts, used, tokens, k, n = draw.listed(*EXPERTS) or (experts, used, tokens, k, n)
    k = unit * -(-k // unit)
    scalars = unit == 1 and draw.on_turn(8, 40)
    w = draw.operand(wtype, (k, n, experts), Numbers("n", terms=k, most=63, few=True))
    fill = Numbers("n" if unit == 1 else "0", terms=k, partner=w, few=True, loud=unit == 1)
    x = draw.floats((k, draw.pick(1, used), tokens), fill, dtype=DType.F32, activated=True)
    if scalars:  # one token and one expert, whose number has no dimension
        x = draw.floats((k,), fill, dtype=DType.F32, activated=True)
        return Call((w, x, draw.operand(DType.I32, (), Integers(0, experts), stays=True)), by_expert)
    ids = draw.operand(DType.I32, (used, tokens), Integers(0, experts), stays=True)
    return Call((w, x, ids), by_expert, batch=(None, 2, 1), batch_out=2, doubled=(True, True, False))


@case(ops.mulmat_id)
def mulmat_id(draw: Draw) -> Call:
    return expert_call(draw, draw.float_dtype())


@case(ops.mulmat_id, "quant")
def mulmat_id_quantized(draw: Draw) -> Call:
    return expert_call(draw, draw.quantized_dtype())


ROUTED = (
    # n, used, tokens, experts
    (5, 8, 3, 128),
    (33, 8, 40, 128),
    (9, 6, 33, 64),
    (4, 1, 257, 2),
    (2880, 4, 3, 32),
    (3, 1, PAST, 7),
    (4, 300, 3, 300),
    (3, 1, 5, PAST),
)
"""Routes of models, and more tokens and experts than 2^16."""


@case(ops.add_id)
def add_id(draw: Draw) -> Call:
    n, used, tokens = draw.side(257), draw.integer(1, 5), draw.pick(1, 2, 9, 17)
    experts = draw.many(*range(1, 10))
    n, used, tokens, experts = draw.listed(*ROUTED) or (n, used, tokens, experts)
    x = draw.floats((n, used, tokens), Numbers("0nis"))
    t2 = draw.floats((n, experts), Numbers("0nis"), dtype=draw.other_float())
    ids = draw.operand(DType.I32, (used, tokens), Integers(0, experts), stays=True)
    return Call(
        (x, t2, ids),
        lambda x, t2, ids: x + t2[ids].reshape(*x.shape),
        batch=(2, None, 1),
        batch_out=2,
        doubled=(True, True, False),
    )


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
    return Call(args, partial(cut_triangle, args[0].dtype), **relations)


CUT = {"lower-diag": (np.tril, 0), "lower": (np.tril, -1), "upper-diag": (np.triu, 0), "upper": (np.triu, 1)}


def cut_triangle(dtype: DType, x: Number, kind: str) -> Array:
    function, k = CUT[kind]
    shape = x.value.shape[-2:] or (1, 1)
    return encode(np.where(function(np.ones(shape, bool), k), x.value, 0).reshape(x.shape), dtype)


def system(making: FillContext, operand: Operand, *, lower: bool, unit: bool) -> Array:
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
    fill = ComputedNumbers(partial(system, lower=lower, unit=unit))
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
