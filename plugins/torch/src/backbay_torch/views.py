"""Views of a storage without `as_strided`, for programs that are compiled.

Inductor takes a copy of a view for the view itself. `as_strided` of the copy then counts from the beginning of the
memory, and not of the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

Array = Any  # a torch.Tensor


def relative_view(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """As `as_strided`, by slices and permutations; where these do not suffice, it is a copy."""
    if 0 in shape:
        return storage[:0].reshape(shape)
    moving = [axis for axis, extent in enumerate(shape) if extent > 1 and strides[axis]]
    axes = sorted(moving, key=lambda axis: -strides[axis])
    steps, counts = [strides[axis] for axis in axes], [shape[axis] for axis in axes]
    if not axes or steps[-1] > 1:  # one element of the innermost steps
        steps, counts = [*steps, 1], [*counts, 1]
    for flat, start in ((storage, offset), (storage[offset:], 0)):
        block = block_of(flat, start, steps, counts)
        if block is not None:
            ordered = block.reshape(block.shape[: len(axes)]).permute([axes.index(axis) for axis in moving])
            return ordered[tuple(slice(None) if n in moving else None for n in range(len(shape)))].expand(
                shape
            )
    return gathered(storage, offset, shape, strides)


def block_of(flat: Array, start: int, steps: Sequence[int], counts: Sequence[int]) -> Array | None:
    """The elements from `start` on by descending steps, if each step is so many of the next one."""
    pairs = list(pairwise(steps))
    extents = [len(flat) // steps[0], *(outer // inner for outer, inner in pairs)]
    if any(outer % inner for outer, inner in pairs):
        return None
    block = flat[: extents[0] * steps[0]].reshape(extents)
    for n, (step, count) in enumerate(zip(steps, counts, strict=True)):
        first, start = divmod(start, step)
        if first + count > extents[n]:
            return None
        block = block.narrow(n, first, count)
    return block


def gathered(storage: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    index = torch.full((), offset, device=storage.device)
    for extent, stride in zip(shape, strides, strict=True):
        index = index[..., None] + stride * torch.arange(extent, device=storage.device)
    return storage[index]
