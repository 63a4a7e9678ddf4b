"""A tensor as shape rules see it: its dtype, its shape and the layout of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from ..errors import DTypeError, ShapeError
from .dtype import DType

MAX_RANK = 4


class Spec:
    """A dtype and a shape, dimension 0 innermost; a view also has strides and an offset, in bytes.

    `strides` is None if the elements are contiguous. `offset` counts from the start of the view's storage.
    """

    __slots__ = ("dtype", "offset", "shape", "strides")

    def __init__(
        self, dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, offset: int = 0
    ) -> None:
        self.dtype = dtype  # one by one, as tracing makes many
        self.shape = shape
        self.strides = strides
        self.offset = offset

    def dim(self, n: int) -> int:
        """The extent of dimension n; 1 beyond the rank."""
        return self.shape[n] if n < len(self.shape) else 1

    def stride(self, n: int) -> int:
        """The bytes from one element of dimension n to the next; from block to block where dimension 0 is quantized."""
        strides = self.strides or contiguous_strides(self.dtype, self.shape)
        if n < len(strides):
            return strides[n]
        return strides[-1] * self.shape[-1] if len(strides) > 1 else self.row_nbytes

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def row_nbytes(self) -> int:
        return self.dtype.row_size(self.dim(0))

    @property
    def nbytes(self) -> int:
        """The bytes of all elements, laid out contiguously."""
        return self.row_nbytes * prod(self.shape[1:])

    @property
    def is_contiguous(self) -> bool:
        return self.strides is None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    __repr__ = __str__


def contiguous_strides(dtype: DType, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of contiguous elements, dimension 0 innermost."""
    return _contiguous_strides(dtype.type_size, dtype.block_size, shape)


@lru_cache(maxsize=4096)  # every layer of a model has the same few shapes
def _contiguous_strides(type_size: int, block_size: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape:
        return ()
    strides, step = [type_size], shape[0] // block_size * type_size
    for extent in shape[1:]:
        strides.append(step)
        step *= extent
    return tuple(strides)


def result_spec(dtype: DType, shape: tuple[int, ...]) -> Spec:
    """The spec of an op's result. Its shape is checked: it may be too large even if an operand is empty."""
    check_shape(dtype, shape)
    return Spec(dtype, shape)


def view_spec(dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Spec:
    """The spec of a view; strides are dropped if they are those of a contiguous layout."""
    if 0 in shape:
        return Spec(dtype, shape, None, offset)
    plain = contiguous_strides(dtype, shape)
    if strides == plain:
        return Spec(dtype, shape, None, offset)
    steps = zip(blocks(dtype, shape), strides, plain, strict=True)
    same = all(n == 1 or have == want for n, have, want in steps)
    return Spec(dtype, shape, None if same else strides, offset)


def blocks(dtype: DType, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape in the units of strides: blocks in dimension 0, elements in the others."""
    return (shape[0] // dtype.block_size, *shape[1:]) if shape else ()


def span(spec: Spec) -> int:
    """The bytes from a view's first element to the end of its last element."""
    if 0 in spec.shape:
        return 0
    if spec.strides is None:
        return spec.nbytes
    steps = zip(blocks(spec.dtype, spec.shape), spec.strides, strict=True)
    return sum((n - 1) * stride for n, stride in steps) + spec.dtype.type_size


def same_shape(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal, trailing extents of 1 ignored."""
    if len(a) > len(b):
        a, b = b, a
    return tuple(b[: len(a)]) == tuple(a) and all(n == 1 for n in b[len(a) :])


def divides(part: int, whole: int) -> bool:
    """Whether `part` can be repeated to `whole`; 0 can only be repeated to 0."""
    return whole == 0 if part == 0 else whole % part == 0


def require(condition: object, rule: str, *values: Any) -> None:
    """Raise ShapeError with the rule and its values unless the condition holds."""
    if not condition:
        raise ShapeError(rule.format(*values))


def require_float(x: Spec, name: str = "the receiver") -> None:
    if not x.dtype.is_float:
        raise DTypeError(f"{name} must be f32, f16 or bf16, got {x.dtype}; cast it first")


def require_dtype(x: Spec, dtypes: tuple[DType, ...], name: str) -> None:
    if x.dtype not in dtypes:
        raise DTypeError(f"{name} must be {' or '.join(map(str, dtypes))}, got {x.dtype}")


def require_rank(x: Spec, most: int, name: str = "the receiver") -> None:
    """Raise ShapeError unless all dimensions beyond `most` are 1."""
    rule = "{} must have at most {} dimensions, got {}"
    require(all(n == 1 for n in x.shape[most:]), rule, name, most, list(x.shape))


def require_contiguous(x: Spec) -> None:
    require(x.is_contiguous, "the receiver must be contiguous; call contiguous(ctx) first")


def check_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    """Raise ShapeError unless a new tensor may have this shape: rank, no negative extent, whole blocks, 63 bits."""
    if not _is_plain(dtype.type_size, dtype.block_size, shape):
        _check_shape(dtype, shape)


@lru_cache(maxsize=4096)
def _is_plain(type_size: int, block_size: int, shape: tuple[int, ...]) -> bool:
    """Whether a shape is certainly valid, a quick test that nearly all shapes pass."""
    fits = 0 < len(shape) <= MAX_RANK and min(shape) > 0 and prod(shape) * type_size < 1 << 63
    return fits and shape[0] % block_size == 0


def _check_shape(dtype: DType, shape: tuple[int, ...]) -> None:
    require(len(shape) <= MAX_RANK, "at most {} dimensions, got {}", MAX_RANK, list(shape))
    require(min(shape, default=0) >= 0, "a dimension is negative: {}", list(shape))
    row = shape[0] if shape else 1
    rule = "dimension 0 of {} must be a multiple of {}, got {}"
    require(row % dtype.block_size == 0, rule, dtype, dtype.block_size, row)
    require(prod(n or 1 for n in shape) * dtype.type_size < 1 << 63, "{} is too large", list(shape))
