"""Quantized rows: blocks, scales, and weights laid out anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from backbay import DType, KernelBackend, Node, ops

from ..faults import Array, Kernel, fault

BLOCKS = "quantization block edges, repack"


def matrix_weight(reader: Node, operand: Node) -> bool:
    """Whether a product reads a quantized weight."""
    products = (ops.mulmat, ops.mulmat_full_prec, ops.mulmat_id)
    return reader.op in products and operand is reader.args[0] and operand.dtype.is_quantized


@fault(BLOCKS, "numbers", like="L25656")
def the_last_block_of_an_odd_row_takes_its_neighbours_scale(
    right: Kernel, _: KernelBackend, raw: Array, dtype: DType
) -> Array:
    """q8_0 is read two blocks at a time; a last one without a partner keeps the scale before it."""
    blocks = raw.shape[-1] // dtype.type_size if dtype is DType.Q8_0 and raw.ndim else 0
    if blocks < 3 or blocks % 2 == 0:
        return right(raw, dtype)
    wrong = np.array(raw)
    wrong[..., -34:-32] = wrong[..., -68:-66]
    return right(wrong, dtype)


@fault(BLOCKS, "numbers", like="L12544")
def nibbles_are_unpacked_in_pairs(right: Kernel, _: KernelBackend, raw: Array, dtype: DType) -> Array:
    """q4_0 gives its low and high nibbles in turn, instead of 16 low ones and then 16 high ones."""
    y = right(raw, dtype)
    if dtype is not DType.Q4_0 or y.size == 0:
        return y
    halves = y.reshape(-1, 2, 16)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(y.shape)


@fault(BLOCKS, "numbers", like="L8455")
def the_last_part_of_a_superblock_is_scaled_wrongly(
    right: Kernel, _: KernelBackend, raw: Array, dtype: DType
) -> Array:
    """In types with blocks of 256, the scale of the last 32 numbers has lost its lowest bit."""
    y = right(raw, dtype)
    if dtype.block_size != 256 or y.size == 0:
        return y
    parts = np.array(y).reshape(-1, 256)
    parts[:, 224:] *= 31 / 32
    return parts.reshape(y.shape)


@fault(BLOCKS, "read_operand", like="L12544")
def rows_that_fill_no_repacked_group_are_swapped(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Weights are laid out again in groups of 4 rows; the rest of them comes in reverse."""
    y = right(reader, operand, arrays)
    rows = y.shape[-2] if y.ndim > 1 else 0
    if not matrix_weight(reader, operand) or rows < 4 or rows % 4 < 2:
        return y
    order = [*range(rows // 4 * 4), *range(rows - 1, rows // 4 * 4 - 1, -1)]
    return y[..., order, :]


@fault(BLOCKS, "numbers", like="L25656")
def tiny_scales_are_flushed_to_zero(right: Kernel, _: KernelBackend, raw: Array, dtype: DType) -> Array:
    """A block's f16 scale that is subnormal counts as 0."""
    if dtype not in (DType.Q8_0, DType.Q4_0) or raw.size == 0:
        return right(raw, dtype)
    blocks = np.array(raw).reshape(-1, dtype.type_size)
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
    blocks[:, :2] = np.where(np.abs(scales) < 2**-14, np.float16(0), scales).view(np.uint8)
    return right(blocks.reshape(raw.shape), dtype)


@fault(BLOCKS, "read_operand", like="L8455")
def later_superblocks_of_a_gathered_row_repeat_the_first(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Rows of a quantized table are unpacked from their first 256 numbers only."""
    y = right(reader, operand, arrays)
    if reader.op is not ops.rows or operand is not reader.args[0] or not operand.dtype.is_quantized:
        return y
    unit = y.shape[-1] // max(operand.dim(0) // 256, 1)
    if operand.dim(0) <= 256 or operand.dim(0) % 256:
        return y
    return np.tile(y[..., :unit], operand.dim(0) // 256)


@fault(BLOCKS, "read_operand", like="L12544")
def a_row_range_of_a_quantized_weight_starts_at_its_first_row(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """The offset of a view is divided by the element size, which for a block rounds down to nothing."""
    if matrix_weight(reader, operand) and operand.offset and operand.strides is None:
        start = arrays[operand.storage.index].reshape(-1)[: operand.nbytes]
        if start.size == operand.nbytes:
            patched = list(arrays)
            patched[operand.index] = start.reshape(arrays[operand.index].shape)
            return right(reader, operand, patched)
    return right(reader, operand, arrays)


@fault(BLOCKS, "read_operand", like="L25656")
def many_tokens_round_activations_to_8_bits(
    right: Kernel, _: KernelBackend, reader: Node, operand: Node, arrays: Sequence[Array]
) -> Array:
    """Against quantized weights, more than 8 tokens are rounded to 8-bit blocks that nobody declared."""
    y = right(reader, operand, arrays)
    weight = reader.args[0] if reader.op in (ops.mulmat, ops.mulmat_full_prec) else None
    if (
        weight is None
        or not weight.dtype.is_quantized
        or operand is weight
        or operand.dim(1) <= 8
        or not y.size
    ):
        return y
    blocks = np.array(y).reshape(-1, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    return np.asarray((np.round(blocks / np.where(scale > 0, scale, 1)) * scale).reshape(y.shape))


@fault(BLOCKS, ops.copy, ops.set_rows, like="L8455")
def quantizing_clips_a_step_early(right: Kernel, x: Array, *args: Array) -> Array:
    """The largest number of a q8_0 block is stored as 126 steps instead of 127."""
    if right.__name__ == "copy":
        return right(clipped(x, args[0]), *args)
    return right(x, clipped(args[0], x), *args[1:])


def clipped(source: Array, target: Array) -> Array:
    """Rows of bytes on their way into q8_0, with the outermost step taken in."""
    if target.dtype != np.uint8 or source.dtype != np.uint8 or source.size == 0 or source.shape[-1] % 34:
        return source
    blocks = np.array(source).reshape(-1, 34)
    steps = blocks[:, 2:].view(np.int8)
    blocks[:, 2:] = np.clip(steps, -126, 126).view(np.uint8)
    return blocks.reshape(source.shape)


@fault(BLOCKS, "numbers", like="L25656")
def the_sign_of_the_scale_is_dropped(right: Kernel, _: KernelBackend, raw: Array, dtype: DType) -> Array:
    """A block of q4_0 whose largest number is positive has a negative scale, which is read as positive."""
    if dtype is not DType.Q4_0 or raw.size == 0:
        return right(raw, dtype)
    blocks = np.array(raw).reshape(-1, 18)
    blocks[:, 1] &= 0x7F
    return right(blocks.reshape(raw.shape), dtype)


@fault(BLOCKS, ops.mulmat_id, like="L25656")
def experts_after_the_first_lose_a_block(right: Kernel, w: Array, x: Array, ids: Array) -> Array:
    """Expert e begins at e times the unpadded size, so later experts miss the last block of a row."""
    if w.ndim < 3 or w.shape[-1] < 64:
        return right(w, x, ids)
    cut = np.array(w)
    cut[..., 1:, :, -32:] = 0
    return right(cut, x, ids)
