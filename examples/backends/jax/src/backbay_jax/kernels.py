"""The kernels: a function for each op that has no composite, and for those that gain by one of their own.

Operands are XLA's arrays of the reversed shape. The kernel of a write returns the new value of its destination.
"""

from collections.abc import Sequence
from math import log, pi

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from backbay import ops
from backbay.ops import Yarn
from backbay.plugin import KernelTable

from .engine import Array

kernel = KernelTable()


def ranked(x: Array, rank: int) -> Array:
    """x with exactly `rank` axes: leading axes of extent 1 are added or dropped."""
    return x.reshape((1,) * (rank - x.ndim) + x.shape[-rank:])


# -- elementwise -----------------------------------------------------------------------------------------

kernel(ops.neg)(lambda x: -x)
kernel(ops.sqr)(lambda x: x * x)
kernel(ops.sqrt)(lambda x: jnp.sqrt(x))
kernel(ops.exp)(lambda x: jnp.exp(x))
kernel(ops.sin)(lambda x: jnp.sin(x))
kernel(ops.cos)(lambda x: jnp.cos(x))
kernel(ops.tanh)(lambda x: jnp.tanh(x))
kernel(ops.sigmoid)(lambda x: jax.nn.sigmoid(x))
kernel(ops.softplus)(lambda x: jnp.logaddexp(0, x))
kernel(ops.gelu_erf)(lambda x: x * jax.lax.erfc(-x * np.float32(0.5**0.5)) / 2)
kernel(ops.scale)(lambda x, s: x * np.float32(s))
kernel(ops.cast)(lambda x, dtype: x)  # storing it converts


@kernel(ops.clamp)
def clamp(x: Array, min: float, max: float) -> Array:
    return jnp.clip(x, np.float32(min), np.float32(max))


@kernel(ops.fill)
def fill(x: Array, value: float) -> Array:
    return jnp.full(x.shape, int(value) if x.dtype.kind == "i" else value, x.dtype)


@kernel(ops.silu)
def silu(x: Array, up: Array | None = None) -> Array:
    y = jax.nn.silu(x)
    return y if up is None else y * up.reshape(y.shape)


def repeated(t2: Array, x: Array) -> Array:
    """The second operand of arithmetic, repeated modulo to the shape of the first."""
    t2 = ranked(t2, x.ndim)
    times = [1 if have == 1 else want // max(have, 1) for want, have in zip(x.shape, t2.shape, strict=True)]
    return jnp.tile(t2, times)


kernel(ops.add)(lambda x, t2: x + repeated(t2, x))
kernel(ops.sub)(lambda x, t2: x - repeated(t2, x))
kernel(ops.mul)(lambda x, t2: x * repeated(t2, x))


@kernel(ops.div)
def div(x: Array, t2: Array) -> Array:
    """XLA multiplies by the reciprocal of what it broadcasts, which is 0 past 2^126. It does not see through a barrier."""
    return x / jax.lax.optimization_barrier(jnp.broadcast_to(repeated(t2, x), x.shape))


# -- products --------------------------------------------------------------------------------------------


def mulmat(w: Array, x: Array) -> Array:
    """Rows of w times rows of x; consecutive groups of x's slices share one of w's."""
    w4, x4 = ranked(w, 4), ranked(x, 4)  # (wb, wa, n, k), (xb, xa, m, k)
    wb, wa, n, k = w4.shape
    xb, xa, m, _ = x4.shape
    grouped = x4.reshape(wb, xb // max(wb, 1), wa, xa // max(wa, 1), m, k)
    y = jnp.einsum("bgahmk,bank->bgahmn", grouped, w4, precision="highest")
    return y.reshape(*x.shape[:-1], n)


kernel(ops.mulmat)(mulmat)
kernel(ops.mulmat_full_prec)(mulmat)


@kernel(ops.mulmat_id)
def mulmat_id(w: Array, x: Array, ids: Array) -> Array:
    chosen = ranked(ids, 2)  # (tokens, used)
    rows = jnp.broadcast_to(ranked(x, 3), (*chosen.shape, w.shape[-1]))  # (tokens, used, k)
    return jnp.einsum("tuk,tunk->tun", rows, ranked(w, 3)[chosen], precision="highest")


# -- reductions over dimension 0, the last axis ----------------------------------------------------------


def mean(x: Array) -> Array:
    return x.sum(-1, keepdims=True) / np.float32(x.shape[-1])


kernel(ops.mean)(mean)
kernel(ops.sum_rows)(lambda x: x.sum(-1, keepdims=True))
kernel(ops.cumsum)(lambda x: jnp.cumsum(x, -1))
kernel(ops.argsort)(lambda x: jnp.argsort(x, -1))


@kernel(ops.softmax)
def softmax(x: Array) -> Array:
    powers = jnp.exp(x - x.max(-1, keepdims=True, initial=-jnp.inf))
    return powers / powers.sum(-1, keepdims=True)


@kernel(ops.rms_norm)
def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
    y = x / jnp.sqrt(mean(x * x) + np.float32(eps))
    return y if weight is None else y * weight.reshape(-1)


@kernel(ops.layer_norm)
def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5) -> Array:
    centred = x - mean(x)
    y = centred / jnp.sqrt(mean(centred * centred) + np.float32(eps))
    y = y if weight is None else y * weight.reshape(-1)
    return y if bias is None else y + bias.reshape(-1)


# -- moving elements -------------------------------------------------------------------------------------

kernel(ops.contiguous)(lambda x, *shape: x)
kernel(ops.copy)(lambda x, dst: x.reshape(dst.shape))


@kernel(ops.concat)
def concat(x: Array, t2: Array, dim: int) -> Array:
    rank = max(x.ndim, t2.ndim, dim + 1)
    return jnp.concatenate([ranked(x, rank), ranked(t2, rank)], rank - 1 - dim)


@kernel(ops.repeat)
def repeat(x: Array, dim: int, n: int) -> Array:
    x = ranked(x, max(x.ndim, dim + 1))
    return jnp.tile(x, [n if axis == x.ndim - 1 - dim else 1 for axis in range(x.ndim)])


@kernel(ops.rows)
def rows(x: Array, ids: Array) -> Array:
    table, wanted = ranked(x, 4), ranked(ids, 3)  # (b, a, count, n), (b, a, k)
    b, a = (np.arange(extent) % max(table.shape[i], 1) for i, extent in enumerate(wanted.shape[:2]))
    return table[b[:, None, None], a[:, None], wanted]


@kernel(ops.set_rows)
def set_rows(x: Array, src: Array, ids: Array) -> Array:
    rows, wanted = ranked(src, 4), ranked(ids, 3)  # (b, a, k, n), (ib, ia, k)
    b, a = (np.arange(extent) for extent in rows.shape[:2])
    where = wanted[b[:, None] % max(wanted.shape[0], 1), a % max(wanted.shape[1], 1)]  # (b, a, k)
    return ranked(x, 4).at[b[:, None, None], a[:, None], where].set(rows)


@kernel(ops.pad_ext)
def pad_ext(
    x: Array,
    lp0: int,
    rp0: int,
    lp1: int = 0,
    rp1: int = 0,
    lp2: int = 0,
    rp2: int = 0,
    lp3: int = 0,
    rp3: int = 0,
) -> Array:
    return jnp.pad(ranked(x, 4), [(lp3, rp3), (lp2, rp2), (lp1, rp1), (lp0, rp0)])


# -- linear algebra --------------------------------------------------------------------------------------


@kernel(ops.diag)
def diag(x: Array) -> Array:
    return jnp.where(np.eye(x.shape[-1], dtype=bool), x, 0)  # row i is (0, ... x[i], ... 0)


@kernel(ops.tri)
def tri(x: Array, kind: str) -> Array:
    row, column = np.arange(x.shape[-2] if x.ndim > 1 else 1)[:, None], np.arange(x.shape[-1])
    upper, whole = kind.startswith("upper"), kind.endswith("diag")
    kept = (column > row if upper else column < row) | (whole & (column == row))
    return jnp.where(kept, ranked(x, 4), 0)


@kernel(ops.solve_tri)
def solve_tri(
    a: Array, b: Array, lower: bool = True, left: bool = True, unit_diagonal: bool = False
) -> Array:
    a, x = ranked(a, 4), ranked(b, 4)
    if not x.size:
        return x
    if not left:  # the transposed problem has its matrix on the left
        a, x, lower = a.swapaxes(2, 3), x.swapaxes(2, 3), not lower
    y = solve_triangular(a, x, lower=lower, unit_diagonal=unit_diagonal)
    return y if left else y.swapaxes(2, 3)


# -- sequences -------------------------------------------------------------------------------------------


@kernel(ops.rope)
def rope(
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float = 1.0,
    mode: str = "normal",
    factors: Array | None = None,
    sections: Sequence[int] = (0, 0, 0, 0),
    yarn: Yarn | None = None,
) -> Array:
    place, power = places(positions, dim, mode, sections)
    pairs = power.size
    theta = place.astype(jnp.float32) * (base ** (-2 * power / dim)).astype(np.float32)  # (tokens, pairs)
    if factors is not None:
        theta = theta / factors.reshape(-1)[:pairs]
    angle, m = stretched(theta, dim, base, scale, yarn)
    cos, sin = m * jnp.cos(angle)[:, None], m * jnp.sin(angle)[:, None]  # (tokens, 1, pairs)
    y = ranked(x, max(x.ndim, 3))  # ((batch,) tokens, heads, head_dim)
    apart, step = (1, 2) if mode == "normal" else (pairs, 1)  # within a pair, and from pair to pair
    first, second = (np.arange(pairs) * step + start for start in (0, apart))
    a, b = y[..., first], y[..., second]
    return y.at[..., first].set(a * cos - b * sin).at[..., second].set(a * sin + b * cos)


def places(positions: Array, dim: int, mode: str, sections: Sequence[int]) -> tuple[Array, np.ndarray]:
    """The position of each pair of each token, (tokens, pairs) or (tokens, 1), and its power of the base."""
    if mode in ("normal", "neox"):
        return positions.reshape(-1, 1), np.arange(dim // 2)
    components = positions.reshape(4, -1).T  # (tokens, 4)
    if mode == "vision":
        second = np.arange(dim) >= sections[0]
        return components[:, second.astype(int)], np.arange(dim) - sections[0] * second
    component = np.repeat(np.arange(4), sections)
    pair = np.arange(dim // 2)
    return components[:, component[pair % component.size]], pair


def stretched(theta: Array, dim: int, base: float, scale: float, yarn: Yarn | None) -> tuple[Array, float]:
    """The angles, and the factor of the result."""
    if yarn is None or yarn.ext_factor == 0:
        return np.float32(scale) * theta, np.float32(yarn.attn_factor if yarn else 1.0)

    def edge(beta: float) -> float:
        with np.errstate(all="ignore"):
            return dim * np.log(np.float64(yarn.n_ctx_orig) / (2 * pi * beta)) / (2 * log(base))

    low, high = max(0, np.floor(edge(yarn.beta_fast))), min(dim - 1, np.ceil(edge(yarn.beta_slow)))
    ramp = (np.arange(theta.shape[-1]) - low) / max(0.001, high - low)
    r = (yarn.ext_factor * (1 - np.clip(ramp, 0, 1))).astype(np.float32)
    factor = np.float32(yarn.attn_factor * (1 + 0.1 * log(1 / scale)))
    return np.float32(scale) * theta * (1 - r) + theta * r, factor


@kernel(ops.ssm_conv)
def ssm_conv(x: Array, weight: Array) -> Array:
    x, weight = ranked(x, 3), ranked(weight, 2)  # (sequences, channels, K-1 + tokens), (channels, K)
    taps = weight.shape[1]
    tokens = x.shape[2] - taps + 1
    y = sum((x[..., i : i + tokens] * weight[:, i : i + 1] for i in range(taps)), np.float32(0))
    return jnp.swapaxes(y, 1, 2)


@kernel(ops.ssm_scan)
def ssm_scan(s: Array, x: Array, dt: Array, A: Array, B: Array, C: Array, ids: Array) -> Array:
    first = ranked(s, 4)[ids.reshape(-1)]  # (sequences, heads, head_dim, states)
    x, A = ranked(x, 4), ranked(A, 2)
    d = jnp.logaddexp(0, ranked(dt, 3))  # (sequences, tokens, heads)
    B, C = (jnp.repeat(ranked(m, 4), x.shape[2] // max(m.shape[-2], 1), axis=2) for m in (B, C))

    def step(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        x, d, b, c = now  # (sequences, heads, ...)
        decay = jnp.exp(d[..., None] * A)[:, :, None]
        state = state * decay + b[:, :, None] * (x * d[..., None])[..., None]
        return state, (state * c[:, :, None]).sum(-1)

    last, y = jax.lax.scan(step, first, tuple(jnp.moveaxis(m, 1, 0) for m in (x, d, B, C)))
    return jnp.concatenate([jnp.moveaxis(y, 0, 1).reshape(-1), last.reshape(-1)])


@kernel(ops.delta_rule)
def delta_rule(
    s: Array, q: Array, k: Array, v: Array, decay: Array, share: Array, removed: Array | None
) -> Array:
    q, k, v, e, share = (ranked(x, 4) for x in (q, k, v, jnp.exp(decay), share))
    if removed is None:
        read, put, added = k * e, k * share, v * share  # (sequences, tokens, heads, key or value)
    else:  # share is of the keys, not of the heads
        read, put, added = ranked(removed, 4), ranked(removed, 4) * share, v

    def step(state: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, e, read, put, added = (x[:, :, None] for x in now)  # (sequences, heads, 1, ...)
        known = (state * read).sum(-1)[..., None]
        state = state * e + jnp.swapaxes(added, 2, 3) * k - known * put
        return state, (state * q).sum(-1)

    scanned = tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, e, read, put, added))
    last, y = jax.lax.scan(step, ranked(s, 4), scanned)  # (sequences, heads, value, key)
    return jnp.concatenate([jnp.moveaxis(y, 0, 1).reshape(-1), last.reshape(-1)])


# -- images ----------------------------------------------------------------------------------------------


def windows(x: Array, axis: int, size: int, stride: int, padding: int, dilation: int) -> Array:
    """x with one axis replaced by two, (windows, taps); `padding` zeros lie before and after, together."""
    extent = x.shape[axis]
    count = (extent + padding - dilation * (size - 1) - 1) // stride + 1
    index = np.arange(count)[:, None] * stride + np.arange(size) * dilation - padding // 2
    index[(index < 0) | (index >= extent)] = extent  # a zero behind the data
    room = [(0, int(n == axis)) for n in range(x.ndim)]
    return jnp.take(jnp.pad(x, room), index, axis)


def patches(
    data: Array, sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> Array:
    """Images (N, IC, H, W) as (N, IC, OH, KH, OW, KW), or with any other number of axes to slide over."""
    for i, size in enumerate(sizes):
        data = windows(data, 2 + 2 * i, size, strides[i], 2 * pads[i], dilations[i])
    return data


def convolve(weight: Array, seen: Array) -> Array:
    """Kernels (OC, IC, KH, KW) times patches: (N, OC, OH, OW)."""
    inner = [*range(1, weight.ndim)]
    taps = [1, *range(3, seen.ndim, 2)]
    return jnp.moveaxis(jnp.tensordot(weight, seen, (inner, taps), precision="highest"), 0, 1)


@kernel(ops.conv2d)
def conv2d(
    weight: Array, data: Array, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Array:
    weight, data = ranked(weight, 4), ranked(data, 4)
    return convolve(weight, patches(data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0)))


@kernel(ops.im2col)
def im2col(
    weight: Array, data: Array, s0: int = 1, s1: int = 1, p0: int = 0, p1: int = 0, d0: int = 1, d1: int = 1
) -> Array:
    weight, data = ranked(weight, 4), ranked(data, 4)
    seen = patches(data, weight.shape[2:], (s1, s0), (p1, p0), (d1, d0))
    n, channels, height, kh, width, kw = seen.shape
    return seen.transpose(0, 2, 4, 1, 3, 5).reshape(n, height, width, channels * kh * kw)


@kernel(ops.conv3d)
def conv3d(
    weight: Array,
    data: Array,
    c: int,
    s0: int = 1,
    s1: int = 1,
    s2: int = 1,
    p0: int = 0,
    p1: int = 0,
    p2: int = 0,
    d0: int = 1,
    d1: int = 1,
    d2: int = 1,
) -> Array:
    weight, data = ranked(weight, 4), ranked(data, 4)
    weight = weight.reshape(weight.shape[0] // c, c, *weight.shape[1:])  # (OC, IC, KD, KH, KW)
    data = data.reshape(data.shape[0] // c, c, *data.shape[1:])  # (N, IC, D, H, W)
    y = convolve(weight, patches(data, weight.shape[2:], (s2, s1, s0), (p2, p1, p0), (d2, d1, d0)))
    return y.reshape(y.shape[0] * y.shape[1], *y.shape[2:])


@kernel(ops.conv1d_dw)
def conv1d_dw(x: Array, weight: Array, s: int = 1, p: int = 0, d: int = 1) -> Array:
    x, taps = ranked(x, 3), weight.shape[-1]
    seen = windows(x, 2, taps, s, 2 * p, d)  # (N, C, OT, K)
    return (seen * weight.reshape(-1, 1, taps)).sum(-1)


@kernel(ops.avg_pool2d)
def avg_pool2d(x: Array, k: int, s: int, p: float = 0.0) -> Array:
    x = ranked(x, 4)
    for axis in (3, 2):
        x = windows(x, axis, k, s, int(2 * p), 1).sum(axis + 1)
    return x / np.float32(k * k)


@kernel(ops.interpolate)
def interpolate(x: Array, dims: Sequence[int], mode: str = "nearest") -> Array:
    x = ranked(x, max(x.ndim, len(dims)))
    if 0 in dims:
        return jnp.zeros(tuple(dims)[::-1], x.dtype)
    for n, extent in enumerate(dims):
        resample = linear if mode == "bilinear" and n < 2 else nearest
        x = resample(x, x.ndim - 1 - n, extent)
    return x


def nearest(x: Array, axis: int, extent: int) -> Array:
    return jnp.take(x, np.arange(extent) * x.shape[axis] // extent, axis)


def linear(x: Array, axis: int, extent: int) -> Array:
    last = x.shape[axis] - 1
    t = (np.arange(extent) + 0.5) * x.shape[axis] / extent - 0.5
    low = np.floor(t).astype(np.int64)
    share = (t - low).astype(np.float32).reshape(-1, *[1] * (x.ndim - 1 - axis))
    before, behind = (jnp.take(x, np.clip(j, 0, last), axis) for j in (low, low + 1))
    return before * (1 - share) + behind * share
