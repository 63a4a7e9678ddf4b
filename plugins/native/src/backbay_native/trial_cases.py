"""Cases of the trial: blocks of quantized weights, and recurrences with their results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from backbay import DType
from backbay.internals import Array, Bytes

SCALES = {DType.Q4_0: (0,), DType.Q8_0: (0,), DType.Q4_K: (0, 2), DType.Q6_K: (208,)}
"""The places of scales in blocks."""
TOKENS, HEADS, VALUES, KEYS = 9, 3, 18, 64


@dataclass(frozen=True)
class TrialCase:
    """A call of an op: its name, its operands in the op's order (arrays of the reversed shape), and the result."""

    op: str
    operands: tuple[Array, ...]
    expected: Array


def recurrence_cases() -> list[TrialCase]:
    """Both delta rules and the selective scan, of some tokens in two sequences, with decays of both widths."""
    rng = np.random.default_rng(4)
    each = 2, TOKENS, HEADS
    s, a = rng.standard_normal((2, HEADS, VALUES, KEYS)), rng.uniform(-1, 0, (HEADS, 1))
    q, k, share, dt = (rng.uniform(-0.1, 0.1, (*each, n)) for n in (KEYS, KEYS, 1, 1))
    v, decay = rng.standard_normal((*each, VALUES)), rng.uniform(-1, 0, (*each, KEYS))
    gated, removing = (s, q, k, v, decay, share), (s, q, k, v, decay, share, q)
    scan, ids = (s[::-1], v, dt[..., 0], a, k, q), np.array([1, 0], np.int32)
    return [
        TrialCase("delta_rule", _single(gated), _delta_rule(*gated)),
        TrialCase("delta_rule", _single(removing), _delta_rule(*removing)),
        TrialCase("ssm_scan", (*_single(scan), ids), _selective_scan(scan[0][ids], *scan[1:])),
    ]


def random_blocks(dtype: DType, count: int, rng: np.random.Generator) -> Bytes:
    """The blocks of `count` numbers, with any codes, and with scales near 1."""
    blocks = rng.integers(0, 256, (count // dtype.block_size, dtype.type_size), np.uint8)
    for place in SCALES[dtype]:
        scale = rng.uniform(0.5, 1.5, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def _single(operands: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.ascontiguousarray(x, np.float32) for x in operands)


def _delta_rule(
    s: Array, q: Array, k: Array, v: Array, decay: Array, share: Array, removed: Array | None = None
) -> Array:
    y = np.empty_like(v)
    for t in range(v.shape[1]):
        query, key, kept, part = (x[:, t, :, None] for x in (q, k, np.exp(decay), share))
        read = key * kept if removed is None else removed[:, t, :, None]
        known = (s * read).sum(-1, keepdims=True)
        value = v[:, t, ..., None]
        if removed is None:
            s = s * kept + key * part * (value - known)
        else:
            s = s * kept + key * value - part * read * known
        y[:, t] = (s * query).sum(-1)
    return np.concatenate([y.ravel(), s.ravel()])


def _selective_scan(s: Array, x: Array, dt: Array, a: Array, b: Array, c: Array) -> Array:
    y, step = np.empty_like(x), np.log1p(np.exp(dt))
    for t in range(x.shape[1]):
        wide = step[:, t, :, None, None]
        s = s * np.exp(wide * a[:, None]) + b[:, t, :, None] * x[:, t, ..., None] * wide
        y[:, t] = (s * c[:, t, :, None]).sum(-1)
    return np.concatenate([y.ravel(), s.ravel()])
