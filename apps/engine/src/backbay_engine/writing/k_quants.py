"""The quantizers of q4_k, q5_k and q6_k in NumPy, which the gguf package lacks: ggml's search, block by block.

A block has 256 numbers. q4_k and q5_k have 8 groups of 32, each with a scale and a least number of 6 bits; q6_k has 16
groups of 16, each with a scale of 8 bits.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import DType

Floats: TypeAlias = NDArray[Any]  # of np.float32; NumPy's stubs lose the type in arithmetic
Bytes: TypeAlias = NDArray[Any]  # of np.uint8
BLOCK = 256
_TINY = 1e-15  # groups of smaller numbers count as zero


def quantize(numbers: Floats, dtype: DType) -> Bytes:
    """Blocks of numbers, (blocks, 256), as bytes, (blocks, bytes of a block)."""
    if dtype is DType.Q6_K:
        return _q6(numbers)
    return _with_least(numbers, *((15, -1.0, 20) if dtype is DType.Q4_K else (31, -0.5, 15)))


def _with_least(numbers: Floats, most: int, first: float, steps: int) -> Bytes:
    groups = numbers.reshape(-1, 8, 32)
    scales, least = _search(groups, most, first, steps)  # (blocks, 8)
    top, bottom = scales.max(1, initial=0), least.max(1, initial=0)
    s = np.minimum(_rounded(scales * _over(63, top)[:, None]), 63).astype(np.uint8)
    m = np.minimum(_rounded(least * _over(63, bottom)[:, None]), 63).astype(np.uint8)
    d, dmin = (top / np.float32(63)).astype(np.float16), (bottom / np.float32(63)).astype(np.float16)
    scale = d.astype(np.float32)[:, None] * s
    shift = dmin.astype(np.float32)[:, None] * m
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = _rounded((groups + shift[..., None]) / scale[..., None])
    codes = np.where(scale[..., None] == 0, 0, np.clip(codes, 0, most)).astype(np.uint8)
    pairs = codes.reshape(-1, 4, 2, 32)
    low = pairs & 15
    packed = (low[:, :, 0] | low[:, :, 1] << 4).reshape(-1, 128)
    parts = [d.view(np.uint8).reshape(-1, 2), dmin.view(np.uint8).reshape(-1, 2), _six_bits(s, m)]
    if most > 15:
        high = (codes >> 4).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
        parts.append(np.bitwise_or.reduce(high, axis=1))
    return np.concatenate([*parts, packed], axis=1)


def _search(groups: Floats, most: int, first: float, steps: int) -> tuple[Floats, Floats]:
    """The scale and the least number, negated, of each group, with the least weighted error of several tries."""
    x = _apart(groups)  # (32, groups)
    weights = np.sqrt(_sum(np.square(x)) / np.float32(len(x))) + np.abs(x)
    low, high = np.minimum(x.min(0), 0), x.max(0)
    wx = weights * x
    sum_w, sum_x = _sum(weights), _sum(wx)
    flat = high == low
    scale, least = (high - low) / np.float32(most), low
    codes = _codes(x, least, _over(most, high - least), most)
    best = _error(x, weights, scale, least, codes)
    for step in range(steps + 1):
        codes = _codes(x, least, _over(np.float32(first + 0.1 * step + most), high - least), most)
        wl = weights * codes
        sum_l = _sum(wl)
        wl *= codes
        sum_l2, sum_xl = _sum(wl), _sum(wx * codes)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        solvable = determinant > 0
        safe = np.where(solvable, determinant, 1)
        this_scale = (sum_w * sum_xl - sum_x * sum_l) / safe
        this_least = (sum_l2 * sum_x - sum_l * sum_xl) / safe
        positive = this_least > 0
        this_scale = np.where(positive, sum_xl / np.where(sum_l2 > 0, sum_l2, 1), this_scale)
        this_least = np.where(positive, 0, this_least)
        found = _error(x, weights, this_scale, this_least, codes)
        better = solvable & (found < best)
        best = np.where(better, found, best)
        scale, least = np.where(better, this_scale, scale), np.where(better, this_least, least)
    scale, least = np.where(flat, 0, scale), -np.where(flat, low, least)
    shape = groups.shape[:2]
    return scale.astype(np.float32).reshape(shape), least.astype(np.float32).reshape(shape)


def _codes(x: Floats, least: Floats, factor: Floats, most: int) -> Floats:
    codes = x - least
    codes *= factor
    np.rint(codes, out=codes)
    found: Floats = np.clip(codes, 0, most, out=codes)
    return found


def _error(x: Floats, weights: Floats, scale: Floats, least: Floats, codes: Floats) -> Floats:
    difference = codes * scale
    difference += least
    difference -= x
    difference *= difference
    difference *= weights
    return _sum(difference)


def _apart(groups: Floats) -> Floats:
    """The numbers of groups as columns: sums over a group are then sums of long rows, in the order of ggml's."""
    return np.ascontiguousarray(groups.reshape(-1, groups.shape[-1]).T)


def _sum(rows: Floats) -> Floats:
    found: Floats = np.add.reduce(rows, axis=0)
    return found


def _six_bits(s: Bytes, m: Bytes) -> Bytes:
    """Eight scales and eight least numbers of 6 bits in 12 bytes."""
    low = np.concatenate([s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6], axis=1)
    return np.concatenate([low, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1)


def _q6(numbers: Floats) -> Bytes:
    groups = numbers.reshape(-1, 16, 16)
    scales = _search_around_zero(groups, 32)
    rows = np.arange(len(scales))
    top = scales[rows, np.abs(scales).argmax(1)]
    empty = np.abs(top) < _TINY
    inverse = np.where(empty, 0, np.float32(-128) / np.where(empty, 1, top)).astype(np.float32)
    with np.errstate(divide="ignore"):
        d = np.where(empty, 0, 1 / np.where(empty, 1, inverse)).astype(np.float16)
    s = np.clip(_rounded(inverse[:, None] * scales), -128, 127).astype(np.int8)
    scale = d.astype(np.float32)[:, None] * s
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = _rounded(groups / scale[..., None])
    codes = (np.where(scale[..., None] == 0, 0, np.clip(codes, -32, 31)) + 32).astype(np.uint8)
    quarters = codes.reshape(-1, 2, 4, 32)
    low = (quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(quarters >> 4 << shifts, axis=2).reshape(-1, 64)
    packed = np.concatenate([low, high, s.view(np.uint8), d.view(np.uint8).reshape(-1, 2)], axis=1)
    packed[empty] = 0
    return packed


def _search_around_zero(groups: Floats, most: int) -> Floats:
    """The scale of each group with the least weighted error of several tries."""
    x = _apart(groups)  # (16, groups)
    peak = np.take_along_axis(x, np.abs(x).argmax(0)[None], 0)[0]
    empty = np.abs(peak) < _TINY
    divisor = np.where(empty, 1, peak)
    weights = np.square(x)
    wx = weights * x
    best = scale = np.zeros_like(peak)
    for step in (0, *range(-9, 0), *range(1, 10)):
        codes = x * (-np.float32(most + np.float32(0.1) * np.float32(step)) / divisor)
        np.rint(codes, out=codes)
        np.clip(codes, -most, most - 1, out=codes)
        sum_lx = _sum(wx * codes)
        codes *= codes
        codes *= weights
        sum_l2 = _sum(codes)
        ratio = sum_lx / np.where(sum_l2 > 0, sum_l2, 1)
        better = (sum_l2 > 0) & ((sum_lx * sum_lx > best * sum_l2) if step else True)
        best, scale = np.where(better, ratio * sum_lx, best), np.where(better, ratio, scale)
    return np.where(empty, 0, scale).astype(np.float32).reshape(groups.shape[:2])


def _over(number: float | np.float32, divisor: Floats) -> Floats:
    """A quotient; 0 where the divisor is 0."""
    zero = divisor == 0
    found: Floats = np.where(zero, 0, np.float32(number) / np.where(zero, 1, divisor)).astype(np.float32)
    return found


def _rounded(numbers: NDArray[Any]) -> Floats:
    found: Floats = np.rint(numbers)
    return found
