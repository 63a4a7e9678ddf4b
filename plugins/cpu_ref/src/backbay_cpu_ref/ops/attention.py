"""Attention."""

from __future__ import annotations

import numpy as np

from backbay import ops

from .kernel_table import Array, kernel, with_rank
from .matrix import mulmat

BLOCK = 1 << 19  # scores that are computed at a time


def tokens_at_a_time(scores: int) -> int:
    """How many tokens are computed at a time, where each has so many scores."""
    return max(1, BLOCK // max(scores, 1))


@kernel(ops.scaled_dot_product_attention)
def scaled_dot_product_attention(
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
) -> Array:
    q, k = (
        with_rank(each, 4).swapaxes(1, 2) for each in (query, key)
    )  # (batch, heads, tokens or history, d)
    v = with_rank(value, 4)
    v = v if cache_config_applied else v.transpose(0, 2, 3, 1)  # (batch, kv, dv, history)
    y = np.empty((*q.shape[:3], v.shape[2]))  # (batch, heads, tokens, dv)
    step = tokens_at_a_time(q.shape[0] * q.shape[1] * k.shape[2])
    for low in range(0, q.shape[2], step):
        some = slice(low, low + step)
        scores = mulmat(k, q[:, :, some]) * scale  # (batch, heads, some tokens, history)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None:
            scores = scores + with_rank(mask, 4)[:, :, : q.shape[2]][:, :, some]
        y[:, :, some] = mulmat(v, _weights(scores, sinks))
    if vmla is not None:
        y = mulmat(with_rank(vmla, 4), y)
    return y.swapaxes(1, 2).reshape(*query.shape[:-1], y.shape[-1])


def _weights(scores: Array, sinks: Array | None) -> Array:
    """The softmax over history; sinks only add to its sum."""
    sink = np.full((1, 1, 1), -np.inf) if sinks is None else sinks.reshape(-1, 1, 1)
    largest = np.maximum(scores.max(axis=-1, keepdims=True, initial=-np.inf), sink)
    powers = np.exp(scores - largest)
    total = powers.sum(axis=-1, keepdims=True)
    return powers / (total if sinks is None else total + np.exp(sink - largest))
