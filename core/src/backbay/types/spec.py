"""The dtypes, and a tensor as shape rules see it: its dtype, its shape and the layout of its elements."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import Any, Self

from ..errors import DTypeError, ShapeError

MAX_RANK = 4


class DType(IntEnum):
    """An element type. F64, I8 and I16 occur in files and in `Precision` only; no op takes them."""

    block_size: int  # elements in a block, 1 for plain types
    type_size: int  # bytes of a block
    is_quantized: bool
    is_float: bool  # a plain float that ops compute with
    is_integer: bool

    def __new__(cls, number: int, block_size: int, type_size: int) -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.block_size, member.type_size = block_size, type_size
        # Attributes, not sets: hashing an enum member is slow, and the shape rule of every op reads them.
        member.is_quantized = block_size > 1
        member.is_float = number in (0, 1, 30)
        member.is_integer = number in (26, 27)
        return member

    F32 = 0, 1, 4
    F16 = 1, 1, 2
    Q4_0 = 2, 32, 18
    Q4_1 = 3, 32, 20
    Q5_0 = 6, 32, 22
    Q5_1 = 7, 32, 24
    Q8_0 = 8, 32, 34
    Q8_1 = 9, 32, 40
    Q2_K = 10, 256, 84
    Q3_K = 11, 256, 110
    Q4_K = 12, 256, 144
    Q5_K = 13, 256, 176
    Q6_K = 14, 256, 210
    Q8_K = 15, 256, 292
    IQ2_XXS = 16, 256, 66
    IQ2_XS = 17, 256, 74
    IQ3_XXS = 18, 256, 98
    IQ1_S = 19, 256, 50
    IQ4_NL = 20, 32, 18
    IQ3_S = 21, 256, 110
    IQ2_S = 22, 256, 82
    IQ4_XS = 23, 256, 136
    I8 = 24, 1, 1
    I16 = 25, 1, 2
    I32 = 26, 1, 4
    I64 = 27, 1, 8
    F64 = 28, 1, 8
    IQ1_M = 29, 256, 56
    BF16 = 30, 1, 2
    TQ1_0 = 34, 256, 54
    TQ2_0 = 35, 256, 66
    MXFP4 = 39, 32, 17
    NVFP4 = 40, 64, 36
    Q1_0 = 41, 128, 18

    __hash__ = int.__hash__  # Enum's hash is slow, and dtypes are keys of caches

    def __bool__(self) -> bool:
        return True  # F32, too, whose number is 0

    def __str__(self) -> str:
        return self.name.lower()

    def row_size(self, elements: int) -> int:
        """The bytes of a row of `elements` elements, which must fill whole blocks."""
        return elements // self.block_size * self.type_size


# The dtypes that tensors may have.
CONTRACT = frozenset(d for d in DType if d.is_quantized or d.is_float or d.is_integer)


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
