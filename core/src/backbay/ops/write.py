"""Writes into the storage of a leaf. Each returns an alias of its destination, for reads after the write."""

from ..types.dtype import DType
from ..types.spec import Spec, check_shape, divides, require, require_dtype, span, view_spec
from .op_declaration import SizeAttr, op


def _alias(x: Spec) -> Spec:
    return Spec(x.dtype, x.shape, x.strides, x.offset)


def region(x: Spec, t2: Spec, offset: int, strides: tuple[int, ...]) -> Spec:
    """The region that `set` writes to: t2's shape within the bytes of x."""
    steps = strides or tuple(x.stride(n) for n in range(1, t2.rank))
    rule = "one stride for each dimension from 1 up, {} for rank {}"
    require(len(steps) >= t2.rank - 1, rule, len(steps), t2.rank)
    inner = (x.dtype.type_size, *steps[: t2.rank - 1])[: t2.rank]
    return view_spec(x.dtype, t2.shape, inner, x.offset + offset)


@op(moves=True, writes="dst")
def copy(x: Spec, dst: Spec) -> Spec:
    """Write x into dst, converted as cast converts; returns an alias of dst.

    Both have the same number of elements, taken in logical order; dst is a leaf, or a view of a leaf. If x and dst
    overlap, x is read before dst is written. dst may be quantized if the backend can quantize to its dtype.
    """
    require(x.size == dst.size, "as many elements as the destination, {} != {}", x.size, dst.size)
    return _alias(dst)


@op(moves=True, writes="x")
def set(x: Spec, t2: Spec, offset: SizeAttr, *strides: SizeAttr) -> Spec:
    """Write t2 into the bytes of x from `offset` on; returns an alias of x.

    x is a leaf, or a view of a leaf, with contiguous elements in dimension 0. The written region lies within x. It has
    t2's shape, contiguous elements in dimension 0, and the given strides for dimensions 1 and up, by default x's
    strides. offset and strides are in bytes, and multiples of the element size (of the block size in bytes, if x is
    quantized). t2 is converted as cast converts, and read before x is written.
    """
    size = x.dtype.type_size
    rule = "elements of the receiver must adjoin in dimension 0, but they begin {} bytes apart"
    require(x.dim(0) <= x.dtype.block_size or x.stride(0) == size, rule, x.stride(0))
    check_shape(x.dtype, t2.shape)
    rule = "offset must be whole elements of {} bytes, got {}"
    require(offset >= 0 and offset % size == 0, rule, size, offset)
    rule = "strides must be whole elements of {} bytes, got {}"
    require(all(step >= 0 and step % size == 0 for step in strides), rule, size, list(strides))
    target = region(x, t2, offset, strides)
    end = offset + span(target)
    require(end <= span(x), "bytes {} to {} are outside of the {} bytes of {}", offset, end, span(x), x)
    return _alias(x)


@op(moves=True, writes="x", ids="ids")
def set_rows(x: Spec, src: Spec, ids: Spec) -> Spec:
    """x[:,ids[i, a mod ia, b mod ib],a,b] = src[:,i,a,b]; returns an alias of x.

    x is (n, count, a, b), a leaf or a view of a leaf; src is (n, k, a, b), converted as cast converts; ids is i32 or
    i64 (k, ia, ib), where ia divides a and ib divides b; each id is in [0, count). If an id repeats, one of its rows
    is kept. If src and x overlap, src is read before x is written.
    """
    require_dtype(ids, (DType.I32, DType.I64), "ids")
    require(x.dim(0) == src.dim(0), "dimension 0 must match, {} != {}", x.dim(0), src.dim(0))
    require(src.dim(1) == ids.dim(0), "as many rows as ids, {} != {}", src.dim(1), ids.dim(0))
    require(ids.dim(3) == 1, "ids must have at most 3 dimensions, got {}", list(ids.shape))
    for n in (2, 3):
        require(x.dim(n) == src.dim(n), "dimension {} must match, {} != {}", n, x.dim(n), src.dim(n))
        rule = "dimension {} of ids must divide {}, got {}"
        require(divides(ids.dim(n - 1), src.dim(n)), rule, n - 1, src.dim(n), ids.dim(n - 1))
    return _alias(x)
