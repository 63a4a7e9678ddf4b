"""Cases of attention: grouped heads, masks, sinks, soft caps, latent values, and permuted values of caches."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from backbay import CacheConfig, DType, ops

from ..draw.data import ComputedNumbers, FillContext, Numbers
from ..draw.draw import Draw
from ..draw.operand import Operand
from ..numbers.encoding import LARGEST, Array
from ..numbers.number import Number, scalar
from ..suite.case import BUILDERS, Args, Call, case
from .matrix import rank4
from .norm import HIDDEN


def attention_formula(
    query: Number,
    key: Number,
    value: Number,
    mask: Number | None,
    scale: float,
    sinks: Number | None,
    vmla: Number | None,
    softcap: float,
    applied: bool,
    *,
    permuted: bool,
    alone: bool = False,
) -> Number:
    """For each head: softmax(scale * query . key + mask) . value; `alone`: each row sees one position."""
    shape = query.shape
    q, k, v = map(rank4, (query.activation(), key, value))  # (batch, tokens, heads, d), (batch, history, ...)
    each = q.shape[2] // k.shape[2]
    k = k.moved(lambda a: np.repeat(a, each, 2))
    if permuted:  # (batch, kv_heads, dv, history)
        v = v.transpose(0, 3, 1, 2)
    v = v.moved(lambda a: np.repeat(a, each, 2))  # (batch, history, heads, dv)
    s = q.einsum("bthd,bphd->bhtp", k.activation(), q.shape[3]) * scalar(scale, q.cost)
    if softcap:
        s = (s * scalar(1 / softcap, q.cost)).tanh() * scalar(softcap, q.cost)
    if mask is not None:
        s = s + rank4(mask)[:, :, : s.shape[2]]
    y = averaged(shares(s, sinks), v.activation(), zero=sinks is not None, alone=alone)
    if vmla is not None:
        y = y.activation().einsum("bthd,hed->bthe", vmla.activation(), vmla.shape[2])
    return y.reshape(*shape[:-1], y.shape[3])


def averaged(weights: Number, v: Number, *, zero: bool, alone: bool) -> Number:
    """(batch, tokens, heads, dv): the weighted mean of values; its error is at most the range of the values.

    Scores with a large error may leave the weights open, but not their sum, which is 1, or less if `zero`. If each row sees
    one position `alone`, its weight is 1 but for the rounding of a division.
    """
    used = weights.activation()
    y = used.einsum("bhtp,bphd->bthd", v, weights.shape[3])
    if not weights.shape[3]:
        return y
    least, most = v.value - v.error, v.value + v.error
    if alone:
        low, high = (np.einsum("bhtp,bphd->bthd", weights.value, end) for end in (least, most))
        return y.within(low, high, 1)
    low, high = least.min(1)[:, None], most.max(1)[:, None]
    if zero:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    return y.within(low, high, weights.shape[3])


def shares(s: Number, sinks: Number | None) -> Number:
    """The softmax over history; a sink takes part of the sum of 1, and adds nothing to the result."""
    peaks = s.value.max(-1, keepdims=True, initial=-np.inf)
    column = None if sinks is None else sinks.reshape(1, -1, 1, 1)
    peak = Number(peaks if column is None else np.maximum(peaks, column.value), 0.0, s.cost)
    powers = (s - peak).exp()
    return powers / (powers.sum() if column is None else powers.sum() + (column - peak).exp())


def masked(tokens: int, making: FillContext, operand: Operand) -> Array:
    """Masks with biases and holes; in special mode one of several tokens sees nothing."""
    history, rows = operand.shape[0], operand.shape[1]
    outer = int(np.prod(operand.shape[2:], dtype=np.int64))
    mask = np.zeros((outer, rows, history))
    if not history:
        return mask
    if making.exact:  # one unmasked position for each row: its weight is 1, also if it is far away
        mask[...] = -np.inf
        chosen = making.rng.integers(history, size=(outer, rows, 1))
        np.put_along_axis(mask, chosen, making.rng.choice(FAR, chosen.shape), -1)
        return mask
    if making.rng.random() < 0.5:
        mask = making.rng.uniform(-2, 2, mask.shape)
    holes = making.rng.random(mask.shape) < making.rng.choice([0.0, 0.3, 0.9])
    holes[..., making.rng.integers(history)] = False
    mask[holes] = max(making.rng.choice(HIDDEN), -LARGEST[operand.dtype])
    if making.rng.random() < 0.1:
        mask += making.rng.choice(FAR, (outer, rows, 1))
        mask = np.maximum(mask, -LARGEST[operand.dtype], where=np.isfinite(mask), out=mask)
    if making.mode == "special" and outer * tokens > 1:
        mask[making.rng.integers(outer), making.rng.integers(tokens)] = -np.inf
    return mask


FAR = (0.0, 0.0, -20480.0, -1024.0)
"""What a mask adds to all that a row sees: it changes nothing, since only differences of scores count."""
MANY = (8, 8, 1, 2, 1, 5)  # the size of several hundred sequences
SIZES = (
    MANY,
    # d, dv, kv_heads, heads of each, tokens, history
    (64, 64, 1, 8, 2, 33),
    (80, 80, 2, 1, 3, 40),
    (96, 96, 1, 12, 2, 20),
    (128, 128, 1, 16, 1, 64),
    (192, 128, 2, 1, 3, 17),
    (256, 256, 1, 4, 2, 33),
    (576, 512, 1, 16, 1, 40),
    (64, 64, 8, 8, 1, 300),
    (128, 128, 2, 4, 40, 70),
    (72, 72, 2, 2, 5, 9),
    (112, 112, 1, 3, 2, 31),
    (32, 32, 2, 3, 3, 0),
    (64, 128, 1, 2, 3, 40),
    (128, 64, 2, 5, 2, 65),
    (40, 256, 1, 1, 2, 5),
    (64, 64, 2, 2, 0, 7),
    (8, 8, 1, 32, 2, 1200),
    (128, 128, 1, 1, 130, 130),
    (8, 8, 1, 2, 1, 4097),
    (16, 16, 2, 1, 2, 8192),
    (576, 512, 1, 128, 1, 9),
    (8, 8, 300, 1, 2, 5),
    (4, 4, 1, 1, 4100, 3),
    (4, 8, 1, 2, 1, 33000),
    (16, 16, 1, 1, 300, 520),
)
"""Sizes of models, histories and steps without anything among them."""
PICTURES = (
    (64, 64, 2, 1, 64, 64),
    (72, 72, 2, 1, 100, 100),
    (80, 80, 1, 1, 196, 196),
    (88, 88, 1, 2, 65, 129),
    (128, 128, 1, 1, 256, 300),
)
"""Sizes of encoders of pictures, whose many tokens all see each other, so that there is no mask."""
BLOCKS = (
    (64, 64, 1, 8, 2, 64),
    (128, 128, 1, 16, 1, 32),
    (96, 96, 2, 12, 2, 32),
    (256, 256, 1, 2, 3, 64),
    (576, 512, 1, 16, 1, 32),
    (192, 128, 2, 1, 3, 96),
    (128, 128, 2, 4, 33, 320),
    (64, 64, 2, 3, 2, 0),
    (64, 64, 1, 2, 1, 4128),
    (32, 32, 2, 1, 2, 8192),
    (32, 32, 300, 1, 1, 32),
    (64, 64, 2, 2, 130, 96),
)
"""Sizes that blocks of 32 divide."""


def attention_call(draw: Draw, kind: DType) -> Call:
    unit = kind.block_size
    d = unit * draw.pick(1, 2) if unit > 1 else draw.pick(8, 1, 16, 33, 40, 64, 80, 128)
    dv = unit * draw.pick(1, 2) if unit > 1 else draw.pick(d, d, 1, 7, 32)
    kv_heads = draw.pick(1, 2, 3)
    heads, tokens = kv_heads * draw.pick(1, 2, 4, 3, 7), draw.pick(1, 2, 5, 9, 33)
    history, batch = draw.pick(1, 2, 7, 32, 33, 64, 257), draw.pick((), (), (1,), (2,), (3,))
    if draw.flag(12):  # a long history, which kernels split into parts
        history, kv_heads, heads, tokens = draw.pick(513, 640, 1030), 1, draw.pick(1, 2), draw.pick(1, 2, 5)
    size = draw.listed(*(SIZES + PICTURES if unit == 1 else BLOCKS))
    if size is not None:
        d, dv, kv_heads, each, tokens, history = size
        heads, batch = kv_heads * each, (300,) if size == MANY else ()
    applied = draw.flag(3) and (unit == 1 or history % unit == 0)
    permuted = applied and draw.cache.permuted_v
    # Rounding moves a score by a part of its terms' magnitudes: far queries show masks and order, near ones precision.
    reach = 8.0 if draw.exact else draw.pick(0.5, 2.0, 0.5, 8.0)
    near = Numbers(low=-8, high=8, most=3)
    if kind is DType.F32 and draw.flag(6):
        near = Numbers(low=-3e6, high=3e6, most=3, loud=True)
    far = Numbers(low=-reach, high=reach, most=3) if unit == 1 else Numbers(low=-reach / 40, high=reach / 40)
    qtype = draw.pick(DType.F32, DType.F32, DType.F16)
    q = draw.floats((d, heads, tokens, *batch), far, dtype=qtype, activated=True)
    k = draw.operand(kind, (d, kv_heads, history, *batch), far)
    laid = (history, dv, kv_heads) if permuted else (dv, kv_heads, history)
    v = draw.operand(kind, (*laid, *batch), near)
    parts = extras(draw, heads, tokens, history, dv, batch)
    if size in PICTURES and not draw.exact:
        parts["mask"] = None
    scale = draw.pick(0.125, 1.0, 0.7, 0.01)  # with 0.01 no position's weight is negligible
    if d >= 32 and reach < 8:
        scale = draw.pick(0.125, float(d) ** -0.5, 0.05, 0.01)
    scale = draw.many_digits(scale)
    softcap = draw.many_digits(draw.by_turn(0.0, 5.0, 0.0, 0.0, 30.0))
    args = (q, k, v, parts["mask"], scale, parts["sinks"], parts["vmla"], softcap, applied)
    alone = draw.exact and parts["vmla"] is None
    call = call_with_cache(args, draw.cache, alone=alone)
    if draw.flag(4) and not draw.exact:
        call.altered = {"scale": scale / 2, "softcap": draw.pick(3.0, 0.0)}
    return call


def call_with_cache(args: Args, cache: CacheConfig, *, alone: bool = False) -> Call:
    """The call of any arguments, the last of which tells whether values lie as the cache's configuration says."""
    formula = partial(attention_formula, permuted=bool(args[-1]) and cache.permuted_v, alone=alone)
    return Call(args, formula, exact=False, free=empty_rows)


BUILDERS[ops.scaled_dot_product_attention] = call_with_cache


def extras(
    draw: Draw, heads: int, tokens: int, history: int, dv: int, batch: tuple[int, ...]
) -> dict[str, Any]:
    """A mask (always, if data are exact), sinks and a latent projection, each of them now and then."""
    found: dict[str, Any] = {"mask": None, "sinks": None, "vmla": None}
    if draw.exact or not draw.flag(3):
        rows = max(1, tokens + draw.by_turn(0, 1, 0, 31))
        outer = (draw.pick(1, heads), draw.pick(*batch, *batch, 1)) if batch and not draw.flag(3) else ()
        kind, fill = draw.pick(DType.F32, DType.F16), ComputedNumbers(partial(masked, tokens))
        found["mask"] = draw.operand(kind, (history, rows, *outer), fill)
    if draw.flag(4) and not draw.exact:
        found["sinks"] = draw.operand(DType.F32, (heads,), Numbers(low=-4, high=4))
    if draw.on_turn(1, 5):
        found["vmla"] = draw.operand(DType.F32, (dv, draw.pick(1, 4, 16), heads), Numbers(low=-2, high=2))
    return found


def empty_rows(q: Array, k: Array, v: Array, mask: Array | None, *rest: Any) -> Array:
    """Marks fully masked rows, whose result may be 0 or NaN, in the result's rank."""
    tokens, heads = q.shape[-3], q.shape[-2]
    if mask is None:
        return np.zeros((), bool)
    full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)[:, :, :tokens]
    hidden = np.isneginf(full).all(-1) if full.shape[-1] else np.zeros(full.shape[:-1], bool)
    empty = np.asarray(hidden).swapaxes(1, 2)[..., None]  # (batch, tokens, heads, 1)
    batch = q.shape[0] if q.ndim > 3 else 1
    return np.asarray(np.broadcast_to(empty, (batch, tokens, heads, 1)).reshape(*q.shape[:-1], 1))


@case(ops.scaled_dot_product_attention, "attention", weight=3.0)
def scaled_dot_product_attention(draw: Draw) -> Call:
    return attention_call(draw, draw.float_dtype())


@case(ops.scaled_dot_product_attention, "quant")
def attention_quantized(draw: Draw) -> Call:
    return attention_call(draw, draw.pick(DType.Q8_0, DType.Q4_0))
