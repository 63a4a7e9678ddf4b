"""Blocks of eight rows interleaved by 8 bytes, as ggml repacks them: written from the layout, not by ggml."""

from __future__ import annotations

import numpy as np

from backbay import DType
from backbay.internals import Array


def repacked(blocks: Array, dtype: DType) -> Array:
    """Blocks of shape (rows, blocks, bytes) in ggml's other arrangement; rows are a multiple of 8."""
    rows, count, size = blocks.shape
    eights = blocks.reshape(rows // 8, 8, count, size).transpose(0, 2, 1, 3)  # (groups, blocks, 8, bytes)
    parts = _q4_0(eights) if dtype is DType.Q4_0 else _q4_k(eights)
    flat = [part.reshape(rows // 8, count, -1) for part in parts]
    return np.ascontiguousarray(np.concatenate(flat, -1)).reshape(rows, -1)


def _q4_0(eights: Array) -> list[Array]:
    return [eights[..., :2], _interleaved(eights[..., 2:] ^ 0x88)]


def _q4_k(eights: Array) -> list[Array]:
    packed = eights[..., 4:16].astype(np.uint8)
    scales, minima = (np.zeros((*packed.shape[:-1], 8), np.uint8) for _ in range(2))
    for i in range(4):
        scales[..., i], minima[..., i] = packed[..., i] & 63, packed[..., 4 + i] & 63
        scales[..., 4 + i] = packed[..., i] >> 6 << 4 | packed[..., 8 + i] & 15
        minima[..., 4 + i] = packed[..., 4 + i] >> 6 << 4 | packed[..., 8 + i] >> 4
    # The twelve bytes of a block's scales now hold those of eight rows, not of eight parts of a row.
    s, m = scales.swapaxes(-1, -2), minima.swapaxes(-1, -2)
    first = s[..., :4] | s[..., 4:] >> 4 << 6
    second = m[..., :4] | m[..., 4:] >> 4 << 6
    third = s[..., 4:] & 15 | m[..., 4:] << 4
    return [
        eights[..., :2],
        eights[..., 2:4],
        np.concatenate([first, second, third], -1),
        _interleaved(eights[..., 16:]),
    ]


def _interleaved(codes: Array) -> Array:
    groups, count, rows, size = codes.shape
    return codes.reshape(groups, count, rows, size // 8, 8).swapaxes(2, 3)
