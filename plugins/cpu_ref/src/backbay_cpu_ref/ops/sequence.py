"""Rotary embeddings, state-space models and the delta rule."""

from collections.abc import Sequence
from math import log, pi

import numpy as np

from backbay import ops
from backbay.ops import Yarn

from .kernel_table import Array, kernel, with_rank


@kernel(ops.rope)
def rope(
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    sections: Sequence[int],
    yarn: Yarn | None,
) -> Array:
    place, power = pair_positions(positions, dim, mode, sections)
    pairs = power.size
    theta = place * base ** (-2 * power / dim)  # (tokens, pairs)
    if factors is not None:
        theta = theta / factors.reshape(-1)[:pairs]
    angle, m = yarn_angles(theta, dim, base, scale, yarn)
    cos, sin = m * np.cos(angle)[:, None], m * np.sin(angle)[:, None]  # (tokens, 1, pairs)

    y = np.array(x, ndmin=3)  # ((batch,) tokens, heads, head_dim)
    apart, step = (1, 2) if mode == "normal" else (pairs, 1)  # within a pair, and from pair to pair
    first, second = (slice(start, start + step * pairs, step) for start in (0, apart))
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y.reshape(x.shape)


def pair_positions(positions: Array, dim: int, mode: str, sections: Sequence[int]) -> tuple[Array, Array]:
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


def yarn_angles(theta: Array, dim: int, base: float, scale: float, yarn: Yarn | None) -> tuple[Array, float]:
    """The angles, and the factor of the result."""
    if yarn is None or yarn.ext_factor == 0:
        return scale * theta, yarn.attn_factor if yarn else 1.0

    def edge(beta: float) -> float:
        turns = np.float64(yarn.n_ctx_orig) / (2 * pi * beta)  # NumPy's: extreme betas give infinities
        return dim * np.log(turns) / (2 * log(base))

    low, high = max(0, np.floor(edge(yarn.beta_fast))), min(dim - 1, np.ceil(edge(yarn.beta_slow)))
    ramp = (np.arange(theta.shape[-1]) - low) / max(0.001, high - low)
    r = yarn.ext_factor * (1 - np.clip(ramp, 0, 1))
    return scale * theta * (1 - r) + theta * r, yarn.attn_factor * (1 + 0.1 * log(1 / scale))


@kernel(ops.ssm_conv)
def ssm_conv(x: Array, weight: Array) -> Array:
    x, weight = with_rank(x, 3), with_rank(weight, 2)  # (sequences, channels, K-1 + tokens), (channels, K)
    taps = weight.shape[1]
    tokens = x.shape[2] - taps + 1
    y = sum((x[..., i : i + tokens] * weight[:, i : i + 1] for i in range(taps)), np.float64(0))
    return np.swapaxes(y, 1, 2)


@kernel(ops.ssm_scan)
def ssm_scan(s: Array, x: Array, dt: Array, A: Array, B: Array, C: Array, ids: Array) -> Array:
    state = with_rank(s, 4)[ids.reshape(-1)]  # (sequences, heads, head_dim, states)
    x, A = with_rank(x, 4), with_rank(A, 2)  # (sequences, tokens, heads, head_dim), (heads, states or 1)
    d = np.logaddexp(0, with_rank(dt, 3))  # (sequences, tokens, heads)
    B, C = per_head(with_rank(B, 4), x.shape[2]), per_head(with_rank(C, 4), x.shape[2])
    y = np.empty_like(x)
    for t in range(x.shape[1]):  # each step needs the state after the step before
        step = d[:, t, :, None]
        decay = np.exp(step * A)[:, :, None]
        state = state * decay + B[:, t, :, None] * (x[:, t] * step)[..., None]
        y[:, t] = (state * C[:, t, :, None]).sum(-1)
    return np.concatenate([y.ravel(), state.ravel()])


def per_head(x: Array, heads: int) -> Array:
    """(sequences, tokens, groups, states) with each group repeated for its heads."""
    return np.repeat(x, heads // max(x.shape[2], 1), axis=2)


@kernel(ops.delta_rule)
def delta_rule(
    s: Array, q: Array, k: Array, v: Array, decay: Array, share: Array, removed: Array | None
) -> Array:
    state = with_rank(s, 4)  # (sequences, heads, value, key)
    q, k, v = with_rank(q, 4), with_rank(k, 4), with_rank(v, 4)  # (sequences, tokens, heads, key or value)
    e, share = np.exp(with_rank(decay, 4)), with_rank(share, 4)
    # What a token reads of the state before it, what it puts in the place, and the values that it adds.
    if removed is None:
        read, put, added = k * e, k * share, v * share
    else:
        read, put, added = with_rank(removed, 4), with_rank(removed, 4) * share, v
    y = np.empty_like(v)
    for t in range(v.shape[1]):  # each step needs the state after the step before
        known = state @ read[:, t, ..., None]  # (sequences, heads, value, 1)
        change = added[:, t, ..., None] * k[:, t, :, None] - known * put[:, t, :, None]
        state = state * e[:, t, :, None] + change
        y[:, t] = (state @ q[:, t, ..., None])[..., 0]
    return np.concatenate([y.ravel(), state.ravel()])
