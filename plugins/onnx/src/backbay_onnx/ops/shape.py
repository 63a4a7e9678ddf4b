"""Views as ops on values, and the copies that change a shape."""

from __future__ import annotations

from backbay import DType, ops
from backbay.internals import Size

from ..lowering.kernel_view import Lowering, Operand
from ..memory.working_memory import nothing
from .kernel_table import kernel


@kernel(ops.reshape, working_memory=nothing)
def reshape(b: Lowering, x: Operand, *shape: Size) -> str:
    return b.shaped(x.value, _across(x, shape))


def _across(x: Operand, shape: tuple[Size, ...]) -> list[Size]:
    return [x.across(shape[0]), *shape[1:]] if shape else []


@kernel(ops.permute, working_memory=nothing)
def permute(b: Lowering, x: Operand, *axes: int) -> str:
    rank = len(axes)
    value = b.ranked(x.value, x.rank, rank)
    source = {rank - 1 - to: rank - 1 - n for n, to in enumerate(axes)}
    value = b.transposed(value, *[source[axis] for axis in range(rank)])
    return b.ranked(value, rank, max((axes[n] + 1 for n in range(x.rank)), default=0))


@kernel(ops.slice, working_memory=nothing)
def slice(b: Lowering, x: Operand, dim: int, low: Size, high: Size, step: int = 1) -> str:
    if dim == 0:
        low, high = x.across(low), x.across(high)
    return b.sliced(x.value, x.rank - 1 - dim, low, high, step)


@kernel(ops.contiguous, working_memory=nothing)
def contiguous(b: Lowering, x: Operand, *shape: Size) -> str:
    return b.shaped(x.value, _across(x, shape)) if shape else x.value


@kernel(ops.duplicate, working_memory=nothing)
def duplicate(b: Lowering, x: Operand) -> str:
    return x.value


@kernel(ops.pad_ext, working_memory=nothing)
def pad_ext(
    b: Lowering,
    x: Operand,
    lp0: Size,
    rp0: Size,
    lp1: Size,
    rp1: Size,
    lp2: Size,
    rp2: Size,
    lp3: Size,
    rp3: Size,
) -> str:
    before, behind = [lp0, lp1, lp2, lp3], [rp0, rp1, rp2, rp3]
    rank = x.rank
    while rank < 4 and not all(
        (low + high).same(0) for low, high in zip(before[rank:], behind[rank:], strict=True)
    ):
        rank += 1
    if rank == 0:  # Pad refuses a tensor without dimensions
        return b.add("Identity", x.of_rank(rank))
    amounts = b.vector([*before[rank - 1 :: -1], *behind[rank - 1 :: -1]])
    return b.add("Pad", x.of_rank(rank), amounts, b.number(0))


@kernel(ops.concat, working_memory=nothing)
def concat(b: Lowering, x: Operand, t2: Operand, dim: int) -> str:
    rank = max(x.rank, t2.rank, dim + 1)
    values = [b.ranked(operand.value, operand.rank, rank) for operand in (x, t2)]
    return b.add("Concat", *values, axis=rank - 1 - dim)


@kernel(ops.repeat, working_memory=nothing)
def repeat(b: Lowering, x: Operand, dim: int, n: Size) -> str:
    rank = max(x.rank, dim + 1)
    times = [n if i == dim else b.symbols.constant(1) for i in range(rank)]
    return _tiled(b, x, rank, times)


@kernel(ops.repeat_4d, working_memory=nothing)
def repeat_4d(b: Lowering, x: Operand, dim0: Size, dim1: Size, dim2: Size, dim3: Size) -> str:
    wanted = [dim0, dim1, dim2, dim3]
    rank = next((n for n in range(4, 0, -1) if not wanted[n - 1].same(1)), 0)
    rank = max(rank, x.rank)
    times = [wanted[n] // x.dim(n) for n in range(rank)]
    return _tiled(b, x, rank, times)


def _tiled(b: Lowering, x: Operand, rank: int, times: list[Size]) -> str:
    """Tile has no kernels for 16-bit floats; float32 holds them exactly."""
    moved = DType.F32 if x.dtype.is_float else x.dtype
    value = b.ranked(b.cast(x.stored, x.dtype, moved), x.rank, rank)
    return b.cast(b.tiled(value, x.dims(rank), times), moved, x.dtype)
