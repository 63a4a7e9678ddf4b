"""Cases of rotary embeddings and state-space models."""

from __future__ import annotations

from math import ceil, floor, log, pi
from typing import Any

import numpy as np

from backbay import DType, ops
from backbay.ops import Yarn

from ..draw.data import ComputedNumbers, Fill, FillContext, Integers, Numbers
from ..draw.draw import PAST, Draw
from ..draw.operand import Operand
from ..numbers.encoding import Array
from ..numbers.number import Cost, Number, concatenate, scalar
from ..suite.case import Call, case
from .elementwise import brim
from .spatial import rank, windows

# -- rope ------------------------------------------------------------------------------------------------


def rope_formula(
    x: Number,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Number | None,
    sections: tuple[int, ...],
    yarn: Yarn | None,
) -> Number:
    """Each pair by itself, as in the documentation's table."""
    cost, y = x.cost, rank(x, max(3, len(x.shape)))  # (..., tokens, heads, head_dim)
    tokens, pairs = y.shape[-3], dim if mode == "vision" else dim // 2
    theta, steps = np.zeros((tokens, pairs)), np.zeros(pairs)
    for i in range(pairs):
        c, e = component(i, mode, sections)
        theta[:, i] = positions.reshape(-1)[c * tokens : (c + 1) * tokens] * base ** (-2 * e / dim)
        # A power in single precision has an error of some roundoffs; a product of e factors has two more for each.
        steps[i] = 16 + 2 * e if e else 0
    angle = Number(theta, steps * cost.step * np.abs(theta), cost)
    if factors is not None:
        angle = angle / factors.value.reshape(-1)[:pairs]
    angle, m = yarn_angles(angle, dim, base, scale, yarn)
    cos, sin = (angle.wave(wave).reshape(tokens, 1, pairs) * m for wave in (np.cos, np.sin))
    return turned(y, cos, sin, dim, pairs, mode).reshape(*x.shape)


def broken_pairs(*given: Any) -> Array:
    """Marks the pairs with an element that is not finite: both may become NaN or any infinity."""

    def number(value: Any) -> Any:
        is_float = isinstance(value, np.ndarray) and value.dtype.kind == "f"
        return Number(value, 0.0, Cost(0.0, 0.0)) if is_float else value

    with np.errstate(all="ignore"):
        return ~np.isfinite(rope_formula(*map(number, given)).value)


def turned(y: Number, cos: Number, sin: Number, dim: int, pairs: int, mode: str) -> Number:
    """The pairs rotated; the elements after them are copied."""
    if mode == "normal":
        a, b = y[..., 0:dim:2], y[..., 1:dim:2]
    else:
        a, b = y[..., :pairs], y[..., pairs : 2 * pairs]
    first, second = a * cos - b * sin, a * sin + b * cos
    rest = y[..., 2 * pairs :]
    if mode != "normal":
        return concatenate([first, second, rest], -1)

    def woven(p: Array, q: Array) -> Array:
        return np.stack([p, q], -1).reshape(*p.shape[:-1], 2 * p.shape[-1])

    paired = Number(woven(first.value, second.value), woven(first.error, second.error), y.cost)
    return concatenate([paired, rest], -1)


def component(i: int, mode: str, sections: tuple[int, ...]) -> tuple[int, int]:
    """The component of the position that rotates pair i, and the pair's power of the base."""
    if mode == "vision":
        return (0, i) if i < sections[0] else (1, i - sections[0])
    if mode == "multi-section":
        place, c = i % sum(sections), 0
        while place >= sections[c]:
            place, c = place - sections[c], c + 1
        return c, i
    return 0, i


def yarn_angles(
    theta: Number, dim: int, base: float, scale: float, yarn: Yarn | None
) -> tuple[Number, Number]:
    if yarn is None or yarn.ext_factor == 0:
        m = 1.0 if yarn is None else yarn.attn_factor
        return theta * scalar(scale, theta.cost), scalar(m, theta.cost)

    def edge(beta: float) -> float:
        return dim * log(yarn.n_ctx_orig / (2 * pi * beta)) / (2 * log(base))

    low, high = max(0, floor(edge(yarn.beta_fast))), min(dim - 1, ceil(edge(yarn.beta_slow)))
    ramp = (np.arange(theta.shape[-1]) - low) / max(0.001, high - low)
    r = yarn.ext_factor * (1 - np.clip(ramp, 0.0, 1.0))
    mixed = theta * scalar(scale, theta.cost) * (1 - r) + theta * r
    m = yarn.attn_factor * (1 + 0.1 * log(1 / scale))
    return mixed, scalar(m, theta.cost) * scalar(1.0, theta.cost)


def beyond_single_precision(making: FillContext, operand: Operand) -> Array:
    """Odd positions of both signs beyond 2^24. Rounding them is right only where sums are declared in f32 or less."""
    rng, size = making.rng, int(np.prod(operand.shape))
    numbers, signs = 2.0 ** rng.integers(24, 31, size), rng.choice([-1, 1], size)
    return np.asarray(signs * (numbers + 2 * rng.integers(0, 2**10, size) + 1))


HEADS = (
    # head_dim, heads, tokens, the rotated part
    (64, 8, 3, 64),
    (80, 2, 5, 32),
    (96, 3, 2, 96),
    (128, 16, 2, 128),
    (192, 1, 3, 64),
    (256, 2, 40, 256),
    (576, 1, 2, 64),
    (128, 2, 0, 128),
    (64, 1, 1, 64),
    (72, 2, 4, 72),
    (256, 4, 3, 64),
    (8, 33, 2, 8),
    (8, 1, 300, 6),
    (128, 0, 3, 128),
    (512, 1, 1, 512),
    (192, 2, 2, 128),
    (64, 70, 3, 16),
    (4, 1, PAST, 4),
    (4, PAST, 1, 2),
    (16, 2, 1030, 16),
)
"""Heads of models, many of them, and steps without tokens."""


@case(ops.rope, weight=2.0)
def rope(draw: Draw) -> Call:
    mode = draw.by_turn("normal", "neox", "multi-section", "vision")
    half = draw.pick(2, 4, 8, 16, 32, 40, 64) if mode == "vision" else draw.pick(2, 1, 4, 8, 16, 32, 40, 64)
    dim = half if mode == "vision" else 2 * draw.integer(1, half) if draw.flag(3) else 2 * half
    heads, tokens, batch = draw.pick(1, 2, 3, 5), draw.pick(1, 2, 5, 9, 17), draw.pick((), (1,), (2,))
    size = draw.listed(*HEADS)
    if size is not None:
        half, heads, tokens = size[0] // 2, size[1], size[2]
        dim = half if mode == "vision" else size[3]
    decoding = size is None and draw.on_turn(1, 10)  # one token, as it comes from a product
    tokens = 1 if decoding else tokens
    most = 3e6 if draw.float_dtype() is DType.F32 and draw.flag(4) else 250
    fill = Numbers("0ni", low=-most, high=most, few=True, loud=most > 250)
    kind = DType.F32 if decoding else draw.float_dtype()
    x = draw.operand(kind, (2 * half, heads, tokens, *batch), fill, layout=not decoding)
    zero = draw.exact and draw.flag()  # all angles are 0
    far = 1 if zero else draw.by_turn(64, 70001, 2, 5000, 65537, 700, 131072, 50000, 2**20 + 1, each=4)
    least = 0 if zero else draw.pick(0, 0, -20, 1 - far)
    per_token = 4 if mode in ("multi-section", "vision") else 1
    positions = draw.operand(DType.I32, (per_token * tokens,), Integers(least, far))
    pairs = dim if mode == "vision" else dim // 2
    if size is None and not zero and draw.on_turn(10, 17):
        positions.fill = ComputedNumbers(beyond_single_precision)
    factors = None
    if draw.flag(3):
        factors = draw.operand(DType.F32, (pairs + draw.below(3),), Numbers(low=0.5, high=8, positive=True))
    scale = draw.many_digits(draw.pick(1.0, 0.25, 0.5, -1.0, 1.7))
    yarn = draw_yarn(draw, zero) if scale > 0 else None
    base = draw.many_digits(draw.pick(10000.0, 500000.0, 100.0))
    args = (x, positions, dim, base, scale, mode, factors, sections_of(draw, mode, half, dim), yarn)
    split = draw.pick(1, 3)
    shared: tuple[None, ...] = (None,) if factors is None else (None, None)
    call = Call(args, rope_formula, exact=zero, free=broken_pairs, instead=(np.nan, np.inf, -np.inf))
    call.batch, call.batch_out, call.doubled = (split, *shared), split, (True, *[False] * len(shared))
    if draw.flag():
        call.altered = {"scale": scale / 2} if draw.flag() else {"base": 2 * base}
    return call


def sections_of(draw: Draw, mode: str, half: int, dim: int) -> tuple[int, int, int, int]:
    if mode == "vision":
        first = draw.integer(0, dim)
        return (first, dim - first, 0, 0)
    if mode == "multi-section":
        first = draw.integer(1, max(1, half // 2))
        second = draw.integer(0, max(0, half // 4))
        return (first, second, draw.integer(0, half // 4), draw.pick(0, 1))
    return (0, 0, 0, 0)


def draw_yarn(draw: Draw, plain: bool) -> Yarn | None:
    if plain or not draw.flag():
        return None
    return Yarn(
        draw.pick(4096, 128, 1 << 20, 32),  # the last two leave the ends of the ramp outside of the pairs
        draw.pick(1.0, 0.5, 1.0, 0.0),
        draw.pick(1.0, 0.7, 1.3),
        draw.pick(32.0, 8.0),
        1.0,
    )


# -- state-space models ----------------------------------------------------------------------------------


CONVOLUTIONS = (
    # K, tokens, channels, sequences
    *((4, 3, 64, 1), (4, 40, 65, 2), (4, 0, 130, 1), (4, 1, 200, 3), (4, 2, 0, 2)),
    *((4, 3, 2, 0), (9, 70, 33, 1), (4, PAST, 1, 1), (4, 2, PAST, 1), (4, 1, 3, 300)),
)


@case(ops.ssm_conv)
def ssm_conv(draw: Draw) -> Call:
    k, tokens = draw.pick(4, 1, 2, 3, 6), draw.side(130)
    channels, n = draw.pick(1, 3, 8, 17, 33), draw.pick(1, 2, 3)
    k, tokens, channels, n = draw.listed(*CONVOLUTIONS) or (k, tokens, channels, n)
    weight = draw.floats((k, channels), Numbers("", terms=k, most=63), dtype=draw.other_float())
    fill = Numbers("ni", terms=k, partner=weight, few=True)
    x = draw.floats((k - 1 + tokens, channels, n), fill, activated=True)

    return Call((x, weight), ssm_conv_formula, batch=(2, None), batch_out=2, doubled=(True, True))


def ssm_conv_formula(x: Number, weight: Number) -> Number:
    x, k = rank(x.activation(), 3), weight.shape[-1]
    if x.shape[-1] < k:
        return x[:, :, :0].moved(lambda a: a.swapaxes(-1, -2))
    seen = windows(x, 2, k, 1, 0, 1)  # (sequences, channels, tokens, K)
    return weight.weight().einsum("ck,nctk->ntc", seen, k)


def decays(making: FillContext, operand: Operand) -> Array:
    return -np.exp(making.rng.uniform(-3, 1, int(np.prod(operand.shape))))


STATES = (
    # states, head_dim, heads, groups, tokens, sequences
    (128, 4, 16, 8, 3, 1),
    (256, 2, 6, 2, 2, 1),
    (128, 2, 9, 3, 1, 2),
    (64, 64, 4, 1, 3, 1),
    (128, 64, 2, 2, 2, 2),
    (128, 32, 8, 1, 1, 1),
    (16, 1, 70, 1, 4, 1),
    (64, 2, 3, 3, 0, 2),
    (16, 4, 2, 1, 3, 0),
    (16, 0, 2, 1, 3, 1),
    (0, 2, 2, 1, 3, 1),
    (16, 2, 0, 1, 2, 1),
    (256, 3, 2, 1, 2, 1),
    (128, 1, 1, 1, 17, 33),
    (4, 1, 1, 1, 520, 1),
    (2, 1, 300, 1, 2, 1),
    (2, 300, 2, 1, 2, 1),
    (2, 1, 1, 1, 1, 300),
)
"""States of models, some of whose heads share B and C in groups, and scans without tokens, sequences or elements."""


@case(ops.ssm_scan)
def ssm_scan(draw: Draw) -> Call:
    states, head_dim, groups = draw.pick(4, 1, 16), draw.pick(1, 2, 8), draw.pick(1, 2)
    heads, tokens = groups * draw.pick(1, 2, 3), draw.pick(1, 0, 2, 5, 9, 40, 70, 259)
    sequences, slots = draw.pick(1, 2, 3), draw.pick(1, 2, 4)
    size = draw.listed(*STATES)
    if size is not None:
        states, head_dim, heads, groups, tokens, sequences = size
    near = Numbers("0", low=-4, high=4)
    s = draw.floats((states, head_dim, heads, slots), near)
    x = draw.floats((head_dim, heads, tokens, sequences), near, dtype=DType.F32)
    # A step of almost 0 times an infinity may be NaN.
    fills: tuple[Fill, ...] = (near, near, Numbers("0", low=-100, high=30), ComputedNumbers(brim))
    steps = draw.fill(*fills) if draw.mode != "special" else near
    dt = draw.floats((heads, tokens, sequences), steps, dtype=DType.F32)
    each = draw.pick(1, states)  # with groups, models have one number for each head
    a = draw.floats((1 if size and groups > 1 else each, heads), ComputedNumbers(decays), dtype=DType.F32)
    b = draw.floats((states, groups, tokens, sequences), near, dtype=DType.F32)
    c = draw.floats((states, groups, tokens, sequences), near, dtype=DType.F32)
    ids = draw.operand(DType.I32, (sequences,), Integers(0, slots), stays=True)
    call = Call((s, x, dt, a, b, c, ids), scan_formula, exact=False)
    if draw.mode == "special" and 0 not in x.shape:
        x.fill = Numbers("ni", low=-4, high=4, few=True)  # NaN stays in its head
    return call


def scan_formula(s: Number, x: Number, dt: Number, a: Number, b: Number, c: Number, ids: Array) -> Number:
    sequences, tokens, heads, head_dim = x.shape
    states = s.shape[-1]
    each = heads // b.shape[2]
    h = s[ids.reshape(-1)]  # (sequences, heads, head_dim, states)
    d = dt.monotone(lambda v: np.logaddexp(0, v), argument=2)
    d = Number(d.value, d.error + 4 * d.cost.step, d.cost)
    b, c = (v.moved(lambda w: np.repeat(w, each, axis=2)) for v in (b, c))
    outputs = []
    for t in range(tokens):
        step = d[:, t].reshape(sequences, heads, 1, 1)
        decay = (step * a.reshape(1, heads, 1, a.shape[-1])).exp()
        wide = b[:, t].reshape(sequences, heads, 1, states)
        h = h * decay + wide * x[:, t].reshape(sequences, heads, head_dim, 1) * step
        seen = (h * c[:, t].reshape(sequences, heads, 1, states)).sum()[..., 0]
        outputs.append(seen.reshape(sequences, 1, heads, head_dim))
    y = [concatenate(outputs, 1)] if tokens else []
    return concatenate([part.reshape(-1) for part in (*y, h)], 0)
