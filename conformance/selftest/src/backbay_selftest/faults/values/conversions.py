"""Wrong conversions, and edges of quantized blocks."""

from __future__ import annotations

import numpy as np

from backbay import DType, Node, ops

from ...fault import FaultKind, InterceptedCall, Result, fault, instead, named, reads
from ...fused import Array


def low_words(x: np.ndarray) -> np.ndarray:
    """The signed low halves of 64-bit integers."""
    return x.astype(np.int64).astype(np.int32).astype(np.int64)


@fault(FaultKind.OVERFLOW, "store")
def a_float_becomes_an_i64_by_way_of_i32(call: InterceptedCall) -> Result:
    """Casts to i64 keep the low half, with its sign."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype is DType.I64 and call.node.args[0].dtype.is_float:
        call.out[...] = low_words(call.out)


@fault(FaultKind.OVERFLOW, "store")
def the_low_half_of_an_i64_is_signed(call: InterceptedCall) -> Result:
    """A cast to i64 writes two halves; a low half from 2^31 on does not borrow from the high half."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype is DType.I64 and call.node.args[0].dtype is DType.F32:
        out = call.out.astype(np.int64)
        call.out[...] = np.where(out & (1 << 31), out - (1 << 32), out)


@fault(FaultKind.PRECISION, "read_operand")
def integers_are_cast_through_f32(call: InterceptedCall) -> Result:
    """i32 and i64 meet in single precision, also from one to the other."""
    y = call.right()
    if call.reader.op is ops.cast and call.operand.dtype.is_integer and call.reader.dtype.is_integer:
        limit = 2.0**31 if call.reader.dtype is DType.I32 else 2.0**63
        through = np.asarray(y).astype(np.float32).astype(np.float64)
        return np.clip(through, -limit, limit - 1024 * (limit / 2**31)).astype(np.int64)
    return y


def cast_by(call: InterceptedCall, whole: np.ufunc) -> None:
    """Casts of floats to integers by a function of the numbers that surely fit."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype.is_integer and call.node.args[0].dtype.is_float:
        x = np.asarray(call.result, np.float64).reshape(call.out.shape)
        sane = np.abs(x) < 2.0**30
        call.out[sane] = whole(x[sane])


@fault(FaultKind.SPECIAL, "store")
def a_float_is_rounded_to_an_integer(call: InterceptedCall) -> Result:
    """Casts round to the nearest integer instead of dropping the fraction."""
    cast_by(call, np.rint)


@fault(FaultKind.SPECIAL, "store")
def a_float_is_rounded_down_to_an_integer(call: InterceptedCall) -> Result:
    """Fractions below zero are dropped downwards."""
    cast_by(call, np.floor)


@fault(FaultKind.SPECIAL, "store")
def a_nan_among_integers_spoils_its_neighbour(call: InterceptedCall) -> Result:
    """Pairs are packed into one word; the bits of a NaN reach the other half."""
    call.right()
    if call.node.op is ops.cast and call.node.dtype.is_integer and call.node.args[0].dtype.is_float:
        flat = np.array(call.out).reshape(-1)
        hit = np.flatnonzero(np.isnan(np.asarray(call.result, np.float64)).reshape(-1)[:-1]) + 1
        flat[hit] = -1
        call.out[...] = flat.reshape(call.out.shape)


@fault(FaultKind.CLAIMS, "data_to_write")
def writes_of_integers_into_floats_move_their_bits(call: InterceptedCall) -> Result:
    """copy, set and set_rows convert between floats only; an i32 lands in an f32 as it is."""
    if call.source.dtype is DType.I32 and call.target.dtype is DType.F32:
        raw = call.raw.view(np.float32)
        return raw.reshape(call.target.shape[::-1]) if call.whole else raw
    return call.right()


@fault(FaultKind.OVERFLOW, "data_to_write")
def writes_into_i64_clear_the_high_half(call: InterceptedCall) -> Result:
    """Numbers written into an i64 are unsigned words, so that -1 becomes 2^32 - 1."""
    y = call.right()
    return y & 0xFFFFFFFF if call.target.dtype is DType.I64 and call.source.dtype is not DType.I64 else y


@fault(FaultKind.CLAIMS, "data_to_write")
def floats_are_written_into_i32_as_f16_would_hold_them(call: InterceptedCall) -> Result:
    y = call.right()
    if call.target.dtype is not DType.I32 or not call.source.dtype.is_float:
        return y
    small = np.abs(y.astype(np.int64)) < 60000
    return np.where(small, np.where(small, y, 0).astype(np.float16).astype(np.int32), y)


@fault(FaultKind.OVERFLOW, ops.fill)
def the_least_i64_is_filled_as_the_largest(call: InterceptedCall) -> Result:
    """The magnitude of -2^63 does not fit, and saturates."""
    return call.right(value=2.0**62) if call.value == -(2.0**63) else call.right()


@fault(FaultKind.SPECIAL, ops.fill)
def fill_with_minus_zero_clears(call: InterceptedCall) -> Result:
    """A value equal to 0 is a memset."""
    return call.right(value=0.0 if call.value == 0 else call.value)


@fault(FaultKind.SPECIAL, ops.fill)
def fill_with_nan_is_a_zero(call: InterceptedCall) -> Result:
    """The value is clamped to the range of the type, with comparisons that NaN fails."""
    return call.right(value=0.0 if np.isnan(call.value) else call.value)


@fault(FaultKind.SPECIAL, ops.fill)
def fill_with_minus_infinity_is_the_lowest_number(call: InterceptedCall) -> Result:
    return call.right(value=-65504.0 if call.value == -np.inf else call.value)


@fault(FaultKind.OVERFLOW, ops.set_rows)
def rows_of_8_bytes_are_written_as_4(call: InterceptedCall) -> Result:
    """Elements of i64 are moved as words, with the row length of i32: the second half of a row stays."""
    if call.x.dtype != np.int64 or call.x.shape[-1] < 2:
        return call.right()
    before, y = np.array(call.x), call.right()
    half = y.shape[-1] // 2
    y[..., half:] = before[..., half:]
    return y


def matrix_weight(reader: Node, operand: Node) -> bool:
    """Whether a product reads a quantized weight."""
    products = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
    return reader.op in products and operand is reader.args[0] and operand.dtype.is_quantized


@fault(FaultKind.BLOCKS, "numbers")
def the_last_block_of_an_odd_row_takes_its_neighbours_scale(call: InterceptedCall) -> Result:
    """q8_0 is read two blocks at a time; an unpaired last block gets its neighbour's scale."""
    blocks = call.raw.shape[-1] // call.dtype.type_size if call.dtype is DType.Q8_0 and call.raw.ndim else 0
    if blocks < 3 or blocks % 2 == 0:
        return call.right()
    wrong = np.array(call.raw)
    wrong[..., -34:-32] = wrong[..., -68:-66]
    return call.right(raw=wrong)


@fault(FaultKind.BLOCKS, "numbers")
def nibbles_are_unpacked_in_pairs(call: InterceptedCall) -> Result:
    """q4_0 gives low and high nibbles alternately, instead of 16 low and then 16 high nibbles."""
    y = call.right()
    if call.dtype is not DType.Q4_0 or y.size == 0:
        return y
    halves = y.reshape(-1, 2, 16)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(y.shape)


@fault(FaultKind.BLOCKS, "numbers")
def the_last_part_of_a_superblock_is_scaled_wrongly(call: InterceptedCall) -> Result:
    """In types with blocks of 256, the scale of the last 32 numbers has lost its lowest bit."""
    y = call.right()
    if call.dtype.block_size != 256 or y.size == 0:
        return y
    parts = np.array(y).reshape(-1, 256)
    parts[:, 224:] *= 31 / 32
    return parts.reshape(y.shape)


@fault(FaultKind.BLOCKS, "read_operand")
def rows_that_fill_no_repacked_group_are_swapped(call: InterceptedCall) -> Result:
    """Weights are repacked in groups of 4 rows; the rows of an incomplete group are reversed."""
    y = call.right()
    rows = y.shape[-2] if y.ndim > 1 else 0
    if not matrix_weight(call.reader, call.operand) or rows < 4 or rows % 4 < 2:
        return y
    order = [*range(rows // 4 * 4), *range(rows - 1, rows // 4 * 4 - 1, -1)]
    return y[..., order, :]


@fault(FaultKind.BLOCKS, "numbers")
def tiny_scales_are_flushed_to_zero(call: InterceptedCall) -> Result:
    """A block's f16 scale that is subnormal counts as 0."""
    if call.dtype not in (DType.Q8_0, DType.Q4_0) or call.raw.size == 0:
        return call.right()
    blocks = np.array(call.raw).reshape(-1, call.dtype.type_size)
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
    blocks[:, :2] = np.where(np.abs(scales) < 2**-14, np.float16(0), scales).view(np.uint8)
    return call.right(raw=blocks.reshape(call.raw.shape))


@fault(FaultKind.BLOCKS, "read_operand")
def later_superblocks_of_a_gathered_row_repeat_the_first(call: InterceptedCall) -> Result:
    """Rows of a quantized table are unpacked from their first 256 numbers only."""
    y, operand = call.right(), call.operand
    parts, rest = divmod(operand.dim(0), 256)
    gathered = reads(call, ops.rows) and operand.dtype.is_quantized
    return np.tile(y[..., : y.shape[-1] // parts], parts) if gathered and parts > 1 and not rest else y


@fault(FaultKind.BLOCKS, "read_operand")
def a_row_range_of_a_quantized_weight_starts_at_its_first_row(call: InterceptedCall) -> Result:
    """The offset of a view is divided by the element size, which for a block rounds down to nothing."""
    operand, arrays = call.operand, call.arrays
    start = arrays[operand.storage.index].reshape(-1)[: operand.nbytes]
    whole = operand.offset and operand.strides is None and start.size == operand.nbytes
    if not whole or not matrix_weight(call.reader, operand):
        return call.right()
    return call.right(arrays=instead(arrays, operand, start.reshape(arrays[operand.index].shape)))


@fault(FaultKind.BLOCKS, "read_operand")
def many_tokens_round_activations_to_8_bits(call: InterceptedCall) -> Result:
    """Against quantized weights, more than 8 tokens are rounded to undeclared 8-bit blocks."""
    y, reader = call.right(), call.reader
    multiplied = any(reads(call, op, 1) for op in named("mulmat", "mulmat_full_prec"))
    if not multiplied or not matrix_weight(reader, reader.args[0]) or call.operand.dim(1) <= 8 or not y.size:
        return y
    blocks = np.array(y).reshape(-1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    return (np.round(blocks / np.where(scale > 0, scale, 1)) * scale).reshape(y.shape)


@fault(FaultKind.BLOCKS, ops.copy, ops.set_rows)
def quantizing_clips_a_step_early(call: InterceptedCall) -> Result:
    """The largest number of a q8_0 block is stored as 126 steps instead of 127."""
    if call.name == "copy":
        return call.right(x=clipped(call.x, call.dst))
    return call.right(src=clipped(call.src, call.x))


def clipped(source: Array, target: Array) -> Array:
    """Rows of q8_0 bytes, with steps clipped to 126."""
    if target.dtype != np.uint8 or source.dtype != np.uint8 or source.size == 0 or source.shape[-1] % 34:
        return source
    blocks = np.array(source).reshape(-1, 34)
    steps = blocks[:, 2:].view(np.int8)
    blocks[:, 2:] = np.clip(steps, -126, 126).view(np.uint8)
    return blocks.reshape(source.shape)


@fault(FaultKind.BLOCKS, "numbers")
def the_sign_of_the_scale_is_dropped(call: InterceptedCall) -> Result:
    """The negative scale of a q4_0 block is read as positive."""
    if call.dtype is not DType.Q4_0 or call.raw.size == 0:
        return call.right()
    blocks = np.array(call.raw).reshape(-1, 18)
    blocks[:, 1] &= 0x7F
    return call.right(raw=blocks.reshape(call.raw.shape))


@fault(FaultKind.BLOCKS, ops.mulmat_id)
def experts_after_the_first_lose_a_block(call: InterceptedCall) -> Result:
    """Expert e begins at e times the unpadded size, so later experts miss the last block of a row."""
    if call.w.ndim < 3 or call.w.shape[-1] < 64:
        return call.right()
    cut = np.array(call.w)
    cut[..., 1:, :, -32:] = 0
    return call.right(w=cut)
