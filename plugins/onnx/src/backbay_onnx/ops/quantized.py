"""Products with quantized weights, and their rows, without decoding the whole weight."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from backbay import Node

from ..lowering.kernel_view import Lowering
from ..lowering.model_builder import CONTRIB
from ..lowering.operand import Operand
from ..session.native import DOMAIN, FORMATS
from ..weights.packing import LAYOUTS, Layout

FAST, EXACT = 4, 1  # accuracy levels: activations in blocks of int8, or float32


def is_packed(w: Node) -> bool:
    """Whether products and gathers read a weight as it is quantized; views and leaves are read as numbers."""
    return w.kind == "parameter" and w.dtype in LAYOUTS and w.rank >= 1


def packed_product(b: Lowering, w: Operand, x: str, rank: int, expert: int | None = None) -> str | None:
    """x, of a rank, times w transposed, by a kernel that reads quantized weights; None if there is none."""
    if not is_packed(w.node) or 0 in w.node.shape:
        return None
    if w.dtype in b.settings.native_products:
        return _native_product(b, w, x, expert)
    layout = LAYOUTS[w.dtype]
    if b.settings.exact and layout.bits == 8:
        # MatMulNBits has no fast 8-bit kernel for float32 activations, but two 4-bit products are the same.
        y = b.add(
            "Add",
            _nbits(b, w, x, expert, "high", "high_scales"),
            _nbits(b, w, x, expert, "low", "scales", "zeros"),
        )
    else:
        y = _nbits(b, w, x, expert, "codes", "scales")
    return b.add("Add", y, _shift(b, w, x, rank, expert)) if layout.is_shifted else y


def packed_rows(b: Lowering, w: Operand, ids: str, rank: int) -> str:
    """Rows of w by number, decoded; `rank` is that of the ids."""
    if w.dtype in b.settings.native_products:
        numbers, format_ = b.cast_to(ids, TensorProto.INT64), FORMATS[w.dtype]
        return b.add("Rows", b.value(w.node, "raw"), numbers, domain=DOMAIN, format=format_)
    layout, k = LAYOUTS[w.dtype], w.node.dim(0)
    blocks = k // layout.block
    codes = b.add(
        "Gather",
        b.weight_part(w.node, "codes", TensorProto.UINT8, (blocks, layout.block * layout.bits // 8)),
        ids,
    )
    if layout.bits == 4:
        low = b.add("BitwiseAnd", codes, b.constant(np.array(15, np.uint8)))
        high = b.add("BitShift", codes, b.constant(np.array(4, np.uint8)), direction="RIGHT")
        last = b.ints(-1)
        codes = b.add("Concat", b.add("Unsqueeze", low, last), b.add("Unsqueeze", high, last), axis=-1)
    keep = [0] * rank  # as many ids as there are
    codes = b.add("Reshape", codes, b.ints(*keep, blocks, layout.block))
    numbers = b.add("Sub", b.cast_to(codes, TensorProto.FLOAT), b.number(layout.zero))
    numbers = b.add("Mul", numbers, _per_block(b, w, "scales", ids))
    if layout.has_mins:
        numbers = b.add("Sub", numbers, _per_block(b, w, "mins", ids))
    return b.add("Reshape", numbers, b.ints(*keep, k))


def _per_block(b: Lowering, w: Operand, part: str, ids: str) -> str:
    blocks = w.node.dim(0) // LAYOUTS[w.dtype].block
    gathered = b.add("Gather", b.weight_part(w.node, part, TensorProto.FLOAT, (blocks,)), ids)
    return b.add("Unsqueeze", gathered, b.ints(-1))


def _native_product(b: Lowering, w: Operand, x: str, expert: int | None) -> str:
    """By code of ours, which reads weights as they are stored: columns become codes once for all weights they meet."""
    rows, format_ = w.node.dim(1), b.settings.native_products[w.dtype]
    codes = b.add("Columns", x, domain=DOMAIN, format=format_)
    return b.add(
        "Products", b.value(w.node, "raw"), codes, domain=DOMAIN, format=format_, first=(expert or 0) * rows,
        rows=rows,
    )  # fmt: skip


def _nbits(
    b: Lowering, w: Operand, x: str, expert: int | None, codes: str, scales: str, zeros: str | None = None
) -> str:
    layout, (k, n) = LAYOUTS[w.dtype], (w.node.dim(0), w.node.dim(1))
    blocks, bits = k // layout.block, layout.bits if codes == "codes" else 4
    b.note_packed(w.node, k * n * bits // 8 + (0 if b.settings.exact else 8 * blocks * n))
    inputs = [
        b.weight_part(w.node, codes, TensorProto.UINT8, (blocks, layout.block * bits // 8), expert),
        b.weight_part(w.node, scales, TensorProto.FLOAT, (blocks,), expert),
    ]
    if zeros:
        inputs.append(b.constant(np.zeros(n * ((blocks + 1) // 2), np.uint8)))
    return b.add(
        "MatMulNBits", x, *inputs, domain=CONTRIB, K=k, N=n, bits=bits, block_size=layout.block,
        accuracy_level=EXACT if b.settings.exact else FAST,
    )  # fmt: skip


def _shift(b: Lowering, w: Operand, x: str, rank: int, expert: int | None) -> str:
    """The correction: the sum of each block of x times the shift of the block of w."""
    layout: Layout = LAYOUTS[w.dtype]
    blocks = w.node.dim(0) // layout.block
    pieces = b.add("Reshape", x, b.ints(*[0] * (rank - 1), blocks, layout.block))
    ones = b.constant(
        np.ones((layout.block, 1), np.float32)
    )  # a ReduceSum of no tokens would get a wrong shape
    sums = b.add("Squeeze", b.add("MatMul", pieces, ones), b.ints(-1))
    shift = b.weight_part(w.node, "shift", TensorProto.FLOAT, (blocks,), expert)
    return b.add("FusedMatMul", sums, shift, domain=CONTRIB, transB=1)
