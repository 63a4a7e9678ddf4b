"""Rotary embeddings, state-space models and the delta rule."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi
from typing import Any

import numpy as np

from .. import ops
from ..ops import Yarn
from .table import Array, Function, extended, kernel, numbers, take, with_rank


@kernel(ops.rope)
def rope(
    xp: Any,
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
    place, power = pair_positions(xp, positions, dim, mode, sections)
    pairs = power.size
    theta = xp.astype(place, xp.float32) * numbers(xp, base ** (-2 * power / dim))  # (tokens, pairs)
    if factors is not None:
        theta = theta / factors.reshape(-1)[:pairs]
    angle, m = yarn_angles(xp, theta, dim, base, scale, yarn)
    cos, sin = m * xp.cos(angle)[:, None], m * xp.sin(angle)[:, None]  # (tokens, 1, pairs)
    y = with_rank(x, max(x.ndim, 3))  # ((batch,) tokens, heads, head_dim)
    apart, step = (1, 2) if mode == "normal" else (pairs, 1)  # within a pair, and from pair to pair
    a, b = (y[..., start : start + step * pairs : step] for start in (0, apart))
    turned = a * cos - b * sin, a * sin + b * cos
    whole = xp.stack(turned, axis=-1) if mode == "normal" else xp.concat(turned, axis=-1)
    return xp.concat([whole.reshape(*y.shape[:-1], 2 * pairs), y[..., 2 * pairs :]], axis=-1)


def pair_positions(
    xp: Any, positions: Array, dim: int, mode: str, sections: Sequence[int]
) -> tuple[Array, np.ndarray[Any, Any]]:
    """The position of each pair of each token, (tokens, pairs) or (tokens, 1), and its power of the base."""
    if mode in ("normal", "neox"):
        return positions.reshape(-1, 1), np.arange(dim // 2)
    if mode == "vision":
        pair = np.arange(dim)
        component, power = np.where(pair >= sections[0], 1, 0), pair - sections[0] * (pair >= sections[0])
    else:
        power = np.arange(dim // 2)
        component = np.repeat(np.arange(4), sections)
        component = component[power % component.size]
    return take(xp, positions.reshape(4, -1), component, 0).T, power


def yarn_angles(
    xp: Any, theta: Array, dim: int, base: float, scale: float, yarn: Yarn | None
) -> tuple[Array, float]:
    """The angles, and the factor of the result."""
    if yarn is None or yarn.ext_factor == 0:
        return scale * theta, yarn.attn_factor if yarn else 1.0

    def edge(beta: float) -> Any:
        with np.errstate(all="ignore"):
            return dim * np.log(np.float64(yarn.n_ctx_orig) / (2 * pi * beta)) / (2 * log(base))

    low, high = max(0, np.floor(edge(yarn.beta_fast))), min(dim - 1, np.ceil(edge(yarn.beta_slow)))
    ramp = (np.arange(theta.shape[-1]) - low) / max(0.001, high - low)
    r = numbers(xp, yarn.ext_factor * (1 - np.clip(ramp, 0, 1)))
    factor = float(yarn.attn_factor * (1 + 0.1 * log(1 / scale)))
    return scale * theta * (1 - r) + theta * r, factor


@kernel(ops.ssm_conv)
def ssm_conv(xp: Any, x: Array, weight: Array) -> Array:
    x, weight = with_rank(x, 3), with_rank(weight, 2)  # (sequences, channels, K-1 + tokens), (channels, K)
    taps = weight.shape[1]
    tokens = x.shape[2] - taps + 1
    return xp.matrix_transpose(sum(x[..., i : i + tokens] * weight[:, i : i + 1] for i in range(taps)))


@extended(ops.ssm_scan)
def ssm_scan(
    xp: Any, scan: Function, s: Array, x: Array, dt: Array, A: Array, B: Array, C: Array, ids: Array
) -> Array:
    state = with_rank(s, 4)[xp.astype(ids.reshape(-1), xp.int64)]  # (sequences, heads, head_dim, states)
    x, A, dt = with_rank(x, 4), with_rank(A, 2), with_rank(dt, 3)
    d = xp.logaddexp(xp.zeros_like(dt), dt)  # (sequences, tokens, heads)
    B, C = (xp.repeat(with_rank(m, 4), x.shape[2] // max(m.shape[-2], 1), axis=2) for m in (B, C))

    decay, put = xp.exp(d[..., None] * A), x * d[..., None]

    def step(state: Array, now: Sequence[Array]) -> tuple[Array, Array]:
        put, decay, b, c = now  # (sequences, heads, ...)
        state = state * decay[:, :, None] + b[:, :, None] * put[..., None]
        return state, xp.sum(state * c[:, :, None], axis=-1)

    return join_scan_results(xp, scan, step, state, (put, decay, B, C))


@extended(ops.delta_rule)
def delta_rule(
    xp: Any,
    scan: Function,
    s: Array,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    share: Array,
    removed: Array | None,
) -> Array:
    v, q, k, e, share = (with_rank(x, 4) for x in (v, q, k, xp.exp(decay), share))
    if removed is None:
        read, put, added = k * e, k * share, v * share  # (sequences, tokens, heads, key or value)
    else:  # share is of the keys, not of the heads
        read, put, added = with_rank(removed, 4), with_rank(removed, 4) * share, v

    def step(state: Array, now: Sequence[Array]) -> tuple[Array, Array]:  # (sequences, heads, value, key)
        added, q, k, e, read, put = now  # (sequences, heads, key or value)
        known = state @ read[..., None]
        state = state * e[:, :, None] + added[..., None] * k[:, :, None] - known * put[:, :, None]
        return state, (state @ q[..., None])[..., 0]

    return join_scan_results(xp, scan, step, with_rank(s, 4), (added, q, k, e, read, put))


def join_scan_results(
    xp: Any, scan: Function, step: Function, state: Array, sequences: Sequence[Array]
) -> Array:
    """The results of all tokens, then the last state, in one row; axis 1 of each sequence counts tokens."""
    state, y = scan(step, state, tuple(xp.moveaxis(x, 1, 0) for x in sequences))
    return xp.concat([xp.moveaxis(y, 0, 1).reshape(-1), state.reshape(-1)])
