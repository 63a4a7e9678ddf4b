"""Views, which hold no data, and copies with another shape."""

from functools import lru_cache
from math import prod
from typing import Any

from ..errors import DTypeError, ShapeError
from ..types.dtype import DType
from ..types.spec import (
    MAX_RANK,
    Spec,
    check_shape,
    contiguous_strides,
    divides,
    require,
    require_contiguous,
    require_float,
    view_spec,
)
from .op_declaration import SizeAttr, SizeAttrs, op

MAX_PIECES = 1 << 16  # of a chunk; no graph has that many nodes


def _infer(ctx: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace one -1 in a shape by the extent that follows from the others."""
    x, shape = args
    if -1 not in shape:
        return args
    rest = prod(n for n in shape if n != -1)
    if shape.count(-1) > 1 or rest <= 0 or x.size % rest:
        raise ShapeError(f"-1 cannot be inferred in {list(shape)} for {x.size} elements")
    return x, tuple(x.size // rest if n == -1 else n for n in shape)


@op(view=True)
def reshape(x: Spec, *shape: SizeAttr) -> Spec:
    """A view of the same elements with another shape. One extent may be -1: it is inferred from the others.

    x must be contiguous. The number of elements stays. Rows of a quantized type must be whole blocks.
    """
    if x.strides is not None:
        require_contiguous(x)
    _check_reshape(x.dtype, x.shape, shape)
    return Spec(x.dtype, shape, None, x.offset)


@lru_cache(maxsize=4096)  # remembers shapes that passed, not shapes that raised
def _check_reshape(dtype: DType, old: tuple[int, ...], new: tuple[int, ...]) -> None:
    check_shape(dtype, new)
    require(prod(new) == prod(old), "{} has {} elements, not {}", list(new), prod(new), prod(old))


@op(view=True, strays=True)
def view(x: Spec, offset: SizeAttr, shape: SizeAttrs, strides: SizeAttrs = ()) -> Spec:
    """A view with the given shape that begins `offset` bytes after x's first element.

    `strides` are the bytes between elements of dimensions 1 and up, by default those of a contiguous layout; in
    dimension 0 elements are contiguous. Only x's bytes matter, not its shape or strides. The view must lie within x's
    storage. offset and strides are multiples of the element size (of the block size in bytes, if x is quantized).
    """
    shape, strides = tuple(shape), tuple(strides)
    check_shape(x.dtype, shape)
    _require_whole(x, "offset", offset)
    if not strides:
        return Spec(x.dtype, shape, None, x.offset + offset)
    rule = "{} dimensions need {} strides, got {}"
    require(len(strides) == len(shape) - 1, rule, len(shape), len(shape) - 1, len(strides))
    require(min(strides) >= 0, "a stride is negative: {}", list(strides))
    for stride in strides:
        _require_whole(x, "stride", stride)
    return view_spec(x.dtype, shape, (x.dtype.type_size, *strides), x.offset + offset)


def _require_whole(x: Spec, what: str, nbytes: int) -> None:
    require(
        nbytes % x.dtype.type_size == 0,
        "{} {} is not a multiple of {} bytes",
        what,
        nbytes,
        x.dtype.type_size,
    )


@op(view=True)
def permute(x: Spec, *axes: int) -> Spec:
    """A view with its dimensions in another order: dimension i of x becomes dimension axes[i].

    So (a,b,c).permute(1,2,0,3) is (c,a,b). axes is a permutation of 0..len(axes)-1, at least as long as x's rank.
    The result ends with the last dimension of x, or has x's rank if that is higher: (a,).permute(1,2,0) is (1,a). If x
    is quantized, dimension 0 must keep its place.
    """
    shape, strides = _permuted(x.dtype, x.shape, x.strides, axes)
    return Spec(x.dtype, shape, strides, x.offset)


@lru_cache(maxsize=4096)  # every layer of a model permutes in the same few ways
def _permuted(
    dtype: DType, shape: tuple[int, ...], strides: tuple[int, ...] | None, axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    fits = sorted(axes) == list(range(len(axes))) and len(shape) <= len(axes) <= MAX_RANK
    rule = "axes must be a permutation of at least {} and at most {} dimensions, got {}"
    require(fits, rule, len(shape), MAX_RANK, list(axes))
    rule = "dimension 0 of {} must stay in its place"
    require(axes[:1] in ((), (0,)) or not dtype.is_quantized, rule, dtype)
    strides = strides or contiguous_strides(dtype, shape)
    rank = max([axis + 1 for axis, _ in zip(axes, shape, strict=False)], default=0)
    gap = strides[-1] * shape[-1] if shape else 0  # the stride of a further dimension, of extent 1
    extents, steps = [1] * rank, [gap] * rank
    for axis, extent, stride in zip(axes, shape, strides, strict=False):
        extents[axis], steps[axis] = extent, stride
    spec = view_spec(dtype, tuple(extents), tuple(steps), 0)
    return spec.shape, spec.strides


@op(view=True)
def slice(x: Spec, dim: int, low: SizeAttr, high: SizeAttr, step: int = 1) -> Spec:
    """A view of the indices low, low + step, ... below high of one dimension: ceil((high - low) / step) of them.

    0 <= low <= high <= x.dim(dim), and step is positive. In dimension 0 of a quantized type, low and high are multiples
    of the block size and step is 1.
    """
    shape, strides, skipped = _sliced(x.dtype, x.shape, x.strides, dim, low, high, step)
    return Spec(x.dtype, shape, strides, x.offset + skipped)


@lru_cache(maxsize=4096)  # remembers slices that passed, not slices that raised
def _sliced(
    dtype: DType,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dim: int,
    low: int,
    high: int,
    step: int,
) -> tuple[tuple[int, ...], tuple[int, ...] | None, int]:
    """The shape and strides of a slice, and the bytes before its first element."""
    _check_dim(len(shape), dim)
    require(0 <= low <= high <= shape[dim], "0 <= low <= high <= {}, got {} and {}", shape[dim], low, high)
    require(step >= 1, "step must be positive, got {}", step)
    block = dtype.block_size if dim == 0 else 1
    whole = low % block == high % block == 0 and (step == 1 or block == 1)
    cut = f"{low}:{high}:{step}"
    require(whole, "dimension 0 of {} is sliced in whole blocks of {}, got {}", dtype, block, cut)
    extents, steps = list(shape), list(strides or contiguous_strides(dtype, shape))
    skipped = low // block * steps[dim] if high > low else 0
    extents[dim] = -((low - high) // step)
    if extents[dim] > 1:  # a single element needs no stride, and step may be huge
        steps[dim] *= step
    spec = view_spec(dtype, tuple(extents), tuple(steps), 0)
    return spec.shape, spec.strides, skipped


@op(inline=True)
def chunk(x: Spec, dim: int, size: SizeAttr) -> list[Spec]:
    """Views that split one dimension into pieces of `size`, at most 65536 pieces; the last piece may be smaller."""
    _check_dim(x.rank, dim)
    require(size >= 1, "size must be positive, got {}", size)
    pieces = -(-x.dim(dim) // size)
    rule = "at most {} pieces, {} of {} would be {}"
    require(pieces <= MAX_PIECES, rule, MAX_PIECES, x.dim(dim), size, pieces)
    return [slice.rule(x, dim, low, min(low + size, x.dim(dim)), 1) for low in range(0, x.dim(dim), size)]


@op(inline=True)
def chunk_sections(x: Spec, dim: int, *sections: SizeAttr) -> list[Spec]:
    """Views that split one dimension into pieces of the given sizes; the sum of the sizes is the extent."""
    _check_dim(x.rank, dim)
    require(all(n >= 0 for n in sections), "a section is negative: {}", list(sections))
    require(sum(sections) == x.dim(dim), "sections add up to {}, not {}", sum(sections), x.dim(dim))
    ends = [sum(sections[: i + 1]) for i in range(len(sections))]
    return [slice.rule(x, dim, end - n, end, 1) for n, end in zip(sections, ends, strict=True)]


@op(moves=True)
def contiguous(x: Spec, *shape: SizeAttr) -> Spec:
    """A contiguous copy of x. It has the given shape, with the same number of elements, or x's shape if none is given.

    One extent may be -1: it is inferred from the others.
    """
    if not shape:
        return x
    _check_reshape(x.dtype, x.shape, shape)
    return Spec(x.dtype, shape)


@op(moves=True)
def duplicate(x: Spec) -> Spec:
    """A contiguous copy of x."""
    return x


@op
def pad(x: Spec, *amounts: SizeAttr) -> Spec:
    """x followed by zeros: amounts[i] of them at the end of dimension i. x is of a float type."""
    require(len(amounts) <= MAX_RANK, "at most {} amounts, got {}", MAX_RANK, len(amounts))
    return pad_ext.rule(x, *[n for amount in (*amounts, 0, 0, 0, 0)[:MAX_RANK] for n in (0, amount)])


@op
def pad_ext(
    x: Spec,
    lp0: SizeAttr,
    rp0: SizeAttr,
    lp1: SizeAttr = 0,
    rp1: SizeAttr = 0,
    lp2: SizeAttr = 0,
    rp2: SizeAttr = 0,
    lp3: SizeAttr = 0,
    rp3: SizeAttr = 0,
) -> Spec:
    """x between zeros: lpN of them before and rpN after the elements of dimension N. x is of a float type."""
    require_float(x)
    amounts = (lp0, rp0, lp1, rp1, lp2, rp2, lp3, rp3)
    require(min(amounts) >= 0, "an amount is negative: {}", list(amounts))
    shape = [x.dim(n) + amounts[2 * n] + amounts[2 * n + 1] for n in range(MAX_RANK)]
    rank = max([x.rank, *(n + 1 for n in range(MAX_RANK) if shape[n] != 1)])
    check_shape(x.dtype, tuple(shape))
    return Spec(x.dtype, tuple(shape[:rank]))


@op(moves=True)
def concat(x: Spec, t2: Spec, dim: int) -> Spec:
    """x followed by t2 along one dimension. Both have the same dtype, and equal extents in the other dimensions."""
    _check_axis(dim)
    if x.dtype is not t2.dtype:
        raise DTypeError(f"both must have one dtype, got {x.dtype} and {t2.dtype}; cast one")
    for n in range(MAX_RANK):
        rule = "dimension {} must match, {} != {}"
        require(n == dim or x.dim(n) == t2.dim(n), rule, n, x.dim(n), t2.dim(n))
    shape = [x.dim(n) for n in range(max(x.rank, t2.rank, dim + 1))]
    shape[dim] += t2.dim(dim)
    check_shape(x.dtype, tuple(shape))
    return Spec(x.dtype, tuple(shape))


@op(inline=True)
def stack(x: Spec, dim: int, *others: Spec) -> Spec:
    """x followed by the other tensors along an existing dimension, as in concat; no dimension is added."""
    for other in others:
        x = concat.rule(x, other, dim)
    return x


@op(moves=True)
def repeat(x: Spec, dim: int, n: SizeAttr) -> Spec:
    """x repeated n times along one dimension: y[i] = x[i mod x.dim(dim)]. x is of a float type, i32 or i64."""
    _check_axis(dim)
    _require_plain(x)
    require(n >= 0, "n must not be negative, got {}", n)
    shape = [x.dim(i) for i in range(max(x.rank, dim + 1))]
    shape[dim] *= n
    check_shape(x.dtype, tuple(shape))
    return Spec(x.dtype, tuple(shape))


@op(moves=True)
def repeat_4d(x: Spec, dim0: SizeAttr, dim1: SizeAttr = 1, dim2: SizeAttr = 1, dim3: SizeAttr = 1) -> Spec:
    """x repeated to the given shape: y[i,j,k,l] = x[i mod n0, j mod n1, k mod n2, l mod n3].

    n0 to n3 are x's extents; those of the given shape are multiples of them. x is of a float type, i32 or i64.
    """
    _require_plain(x)
    shape = (dim0, dim1, dim2, dim3)
    check_shape(x.dtype, shape)
    for n in range(MAX_RANK):
        rule = "dimension {} does not repeat, {} does not divide {}"
        require(divides(x.dim(n), shape[n]), rule, n, x.dim(n), shape[n])
    rank = max([x.rank, *(n + 1 for n in range(MAX_RANK) if shape[n] != 1)])
    return Spec(x.dtype, shape[:rank])


reshape.prepare(_infer)
contiguous.prepare(_infer)


def _check_axis(dim: int) -> None:
    require(0 <= dim < MAX_RANK, "dim must be in [0, {}], got {}", MAX_RANK - 1, dim)


def _check_dim(rank: int, dim: int) -> None:
    require(0 <= dim < rank, "dim must be in [0, {}], got {}", rank - 1, dim)


def _require_plain(x: Spec) -> None:
    if x.dtype.is_quantized:
        raise DTypeError(f"the receiver must not be quantized, got {x.dtype}; cast it first")
