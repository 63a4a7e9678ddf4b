"""Attention as one correct kernel, with parameters for the places where real kernels go wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Change = Callable[[Array], Array]


def same(x: Array) -> Array:
    return x


def grouped(x: Array, heads: int) -> Array:
    """(batch, kv_heads, ...) with each kv_head repeated for its group of consecutive heads."""
    return np.repeat(x, heads // max(x.shape[1], 1), axis=1)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    scale: float,
    sinks: Array | None = None,
    vmla: Array | None = None,
    softcap: float = 0.0,
    cache_config_applied: bool = False,
    spread: Callable[[Array, int], Array] = grouped,
    change_scores: Change = same,
    change_mask: Change = same,
    change_weights: Change = same,
) -> Array:
    """Attention as the op's docstring specifies it; a fault enters through the last four parameters."""
    q, k, v = (rank4(a).swapaxes(1, 2) for a in (query, key, value))  # (batch, heads, tokens or history, d)
    if cache_config_applied:
        v = rank4(value).swapaxes(2, 3)  # stored as (batch, kv_heads, dv, history)
    heads, tokens = q.shape[1], q.shape[2]
    scores = change_scores(q @ spread(k, heads).swapaxes(2, 3) * scale)  # (batch, heads, tokens, history)
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + change_mask(rank4(mask))[:, :, :tokens]
    result = change_weights(weights(scores, sinks)) @ spread(v, heads)  # (batch, heads, tokens, dv)
    if vmla is not None:
        result = result @ rank4(vmla).swapaxes(2, 3)
    made = result.swapaxes(1, 2)
    return made.reshape(*query.shape[:-1], made.shape[-1])


def weights(scores: Array, sinks: Array | None) -> Array:
    """The softmax over history; the sinks are a temporary column."""
    if sinks is None:
        powers = exponentials(scores)
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    column = np.broadcast_to(sinks.reshape(-1)[:, None, None], (*scores.shape[:-1], 1))
    return weights(np.concatenate([scores, column], axis=-1), None)[..., :-1]


def exponentials(x: Array) -> Array:
    """The numerators of a softmax over rows."""
    return np.asarray(np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf)))


def scaled(y: Array, weight: Array | None, bias: Array | None = None) -> Array:
    """A norm's result times its weight, plus its bias."""
    y = y if weight is None else y * weight.reshape(-1)
    return y if bias is None else y + bias.reshape(-1)


def rank4(x: Array) -> Array:
    return x.reshape((1,) * (4 - x.ndim) + x.shape)
