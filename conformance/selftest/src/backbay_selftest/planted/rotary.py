"""Rotary embeddings: partial, in their pairings, shifted, and far out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from backbay import ops

from ..faults import Array, Kernel, fault

ROPE = "RoPE variants"
Rest = Any  # factors, sections and yarn, passed on


@fault(ROPE, ops.rope, like="L14580")
def partial_rope_clears_the_rest(
    right: Kernel, x: Array, positions: Array, dim: int, base: float, scale: float, mode: str, *rest: Rest
) -> Array:
    """Elements from dim on become 0 instead of being copied."""
    y = np.array(right(x, positions, dim, base, scale, mode, *rest))
    if mode != "vision":
        y[..., dim:] = 0
    return y


@fault(ROPE, ops.rope, like="L14580")
def partial_neox_pairs_across_the_whole_head(
    right: Kernel, x: Array, positions: Array, dim: int, base: float, scale: float, mode: str, *rest: Rest
) -> Array:
    """Element i meets i + head_dim/2, also where only dim elements turn."""
    half = x.shape[-1] // 2
    if mode != "neox" or dim == x.shape[-1]:
        return right(x, positions, dim, base, scale, mode, *rest)
    order = [
        *range(dim // 2),
        *range(half, half + dim // 2),
        *range(dim // 2, half),
        *range(half + dim // 2, 2 * half),
    ]
    turned = right(x[..., order], positions, dim, base, scale, mode, *rest)
    y = np.empty_like(turned)
    y[..., order] = turned
    return y


@fault(ROPE, ops.rope, like="L15629")
def frequencies_of_partial_rope_come_from_the_head(
    right: Kernel, x: Array, positions: Array, dim: int, base: float, scale: float, mode: str, *rest: Rest
) -> Array:
    """The powers of base divide by head_dim instead of dim."""
    if mode in ("normal", "neox"):
        base = base ** (dim / x.shape[-1])
    return right(x, positions, dim, base, scale, mode, *rest)


@fault(ROPE, ops.rope, like="L3272")
def negative_positions_count_as_zero(right: Kernel, x: Array, positions: Array, *rest: Rest) -> Array:
    """A shift backwards turns nothing."""
    return right(x, np.maximum(positions, 0), *rest)


@fault(ROPE, ops.rope, like="L15629")
def positions_are_kept_in_half_precision(right: Kernel, x: Array, positions: Array, *rest: Rest) -> Array:
    """Positions above 2048 are rounded to even numbers, and further."""
    return right(x, positions.astype(np.float16).astype(np.float64), *rest)


@fault(ROPE, ops.rope, like="L14580")
def neox_ignores_frequency_factors(
    right: Kernel,
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    *rest: Rest,
) -> Array:
    """Only the kernel for normal pairs divides by the factors."""
    return right(x, positions, dim, base, scale, mode, None if mode == "neox" else factors, *rest)


@fault(ROPE, ops.rope, like="L14580")
def frequency_factors_multiply(
    right: Kernel,
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    *rest: Rest,
) -> Array:
    """Angles are multiplied with the factors instead of divided by them."""
    return right(x, positions, dim, base, scale, mode, None if factors is None else 1 / factors, *rest)


@fault(ROPE, ops.rope, like="L13870")
def sections_do_not_repeat(
    right: Kernel,
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    sections: Sequence[int],
    yarn: Any,
) -> Array:
    """In multi-section mode, pairs beyond the sum of the sections all take the first component."""
    total = sum(sections)
    if mode == "multi-section" and 0 < total < dim // 2:
        beyond = dim // 2 - total
        parts = positions.reshape(4, -1)
        first = right(x, np.tile(parts[0], 4), dim, base, scale, mode, factors, sections, yarn)
        y = np.array(right(x, positions, dim, base, scale, mode, factors, sections, yarn))
        for start in (total, dim // 2 + total):
            y[..., start : start + beyond] = first[..., start : start + beyond]
        return y
    return right(x, positions, dim, base, scale, mode, factors, sections, yarn)


@fault(ROPE, ops.rope, like="L15629")
def yarn_stretches_by_the_head(
    right: Kernel,
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    sections: Sequence[int],
    yarn: Any,
) -> Array:
    """The factor of yarn also multiplies the elements that are only copied."""
    y = np.array(right(x, positions, dim, base, scale, mode, factors, sections, yarn))
    if yarn is not None and mode != "vision":
        y[..., dim:] *= yarn.attn_factor
    return y


@fault(ROPE, ops.rope, like="L13870")
def vision_powers_run_on(
    right: Kernel,
    x: Array,
    positions: Array,
    dim: int,
    base: float,
    scale: float,
    mode: str,
    factors: Array | None,
    sections: Sequence[int],
    yarn: Any,
) -> Array:
    """The second section of vision does not start its powers of base again."""
    if mode != "vision" or not sections[0] or factors is not None:
        return right(x, positions, dim, base, scale, mode, factors, sections, yarn)
    late = np.where(np.arange(dim) >= sections[0], base ** (2 * sections[0] / dim), 1.0)
    return right(x, positions, dim, base, scale, mode, late, sections, yarn)


@fault(ROPE, ops.rope, like="L3272")
def turning_back_turns_forth(
    right: Kernel, x: Array, positions: Array, dim: int, base: float, scale: float, *rest: Rest
) -> Array:
    """The sign of scale is dropped."""
    return right(x, positions, dim, base, abs(scale), *rest)


@fault(ROPE, ops.rope, like="L4889")
def all_tokens_beyond_the_first_batch_reuse_its_table(
    right: Kernel, x: Array, positions: Array, *rest: Rest
) -> Array:
    """Sines are kept for 16 tokens, and token 16 takes those of token 0 again."""
    if positions.size == (x.shape[-3] if x.ndim > 2 else 1) > 16:
        positions = positions.reshape(-1)[np.arange(positions.size) % 16].reshape(positions.shape)
    return right(x, positions, *rest)
