"""Shapes and strides as ggml counts them, in four dimensions, and tensors outside of any pool."""

from __future__ import annotations

from collections.abc import Sequence

from backbay import DType, Spec
from backbay.internals import blocks, contiguous_strides

from ..library.abi import Ptr, ffi

LONGEST = (1 << 31) - 1  # of an extent, and of the number of rows: ggml counts them in 31 bits
LARGEST = 1 << 46  # elements; no machine holds more, and sums of sizes in C stay far from overflow


def four(spec: Spec) -> tuple[int, ...]:
    """A shape of exactly four dimensions."""
    shape: tuple[int, ...] = (*spec.shape, 1, 1, 1, 1)[:4]
    return shape


def strides(spec: Spec) -> tuple[int, ...]:
    """Four strides; dimensions of one element get those of a contiguous layout, whatever a view says."""
    shape = four(spec)
    counts = blocks(spec.dtype, shape)
    made = [spec.stride(0) if spec.rank and counts[0] > 1 else spec.dtype.type_size]
    for n in (1, 2, 3):
        step = made[n - 1] * counts[n - 1]
        made.append(spec.stride(n) if n < spec.rank and shape[n] > 1 else step)
    return tuple(made)


def dense_strides(dtype: DType, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous layout."""
    return contiguous_strides(dtype, tuple(shape))


def leaf_tensor(dtype: DType, ne: Sequence[int]) -> Ptr:
    """A contiguous tensor outside of any pool, without data."""
    made = ffi.new("ggml_tensor *")
    made.type, made.ne, made.nb = int(dtype), ne, dense_strides(dtype, ne)
    return made


def leaf_tensor_of(spec: Spec) -> Ptr:
    """A contiguous tensor of a spec's dtype and shape, outside of any pool, without data."""
    return leaf_tensor(spec.dtype, four(spec))
