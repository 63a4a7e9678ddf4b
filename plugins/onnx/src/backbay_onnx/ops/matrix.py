"""Matrix products, dense, quantized and by expert, and rows of quantized weights."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from onnx import TensorProto

from backbay import Node, ops
from backbay_native import FORMATS

from ..lowering.kernel_view import Lowering, Operand
from ..lowering.model_builder import CONTRIB
from ..memory.working_memory import Measure
from ..session.native import DOMAIN
from ..weights.packing import ENCODINGS, PackedEncoding
from .kernel_table import kernel

FAST, EXACT = 4, 1  # accuracy levels: activations in blocks of int8, or float32


def is_packed(w: Node) -> bool:
    """Whether products and gathers read a weight as it is quantized; views and leaves are read as numbers."""
    return w.kind == "parameter" and w.dtype in ENCODINGS and w.rank >= 1


def packed_product(b: Lowering, w: Operand, x: str, rank: int, expert: int | None = None) -> str | None:
    """x, of a rank, times w transposed, by a kernel that reads quantized weights; None if there is none."""
    if not is_packed(w.node) or 0 in w.node.shape:
        return None
    if w.dtype.name in b.native.formats:
        return _native_product(b, w, x, rank, expert)
    encoding = ENCODINGS[w.dtype]
    if b.settings.exact and encoding.bits == 8:
        # MatMulNBits has no fast 8-bit kernel for float32 activations, but two 4-bit products are the same.
        y = b.add(
            "Add",
            _nbits(b, w, x, expert, "high", "high_scales"),
            _nbits(b, w, x, expert, "low", "scales", "zeros"),
        )
    else:
        y = _nbits(b, w, x, expert, "codes", "scales")
    return b.add("Add", y, _shift(b, w, x, rank, expert)) if encoding.is_shifted else y


def packed_rows(b: Lowering, w: Operand, ids: str, rank: int) -> str:
    """Rows of w by number, decoded; `rank` is that of the ids."""
    if w.dtype.name in b.native.formats:
        numbers, format_ = b.cast_to(ids, TensorProto.INT64), FORMATS.index(w.dtype.name)
        return b.add("Rows", b.value(w.node, "raw"), numbers, domain=DOMAIN, format=format_)
    encoding, k = ENCODINGS[w.dtype], w.node.dim(0)
    blocks = k // encoding.block
    codes = b.add(
        "Gather",
        b.weight_part(w.node, "codes", TensorProto.UINT8, (blocks, encoding.block * encoding.bits // 8)),
        ids,
    )
    if encoding.bits == 4:
        low = b.add("BitwiseAnd", codes, b.constant(np.array(15, np.uint8)))
        high = b.add("BitShift", codes, b.constant(np.array(4, np.uint8)), direction="RIGHT")
        last = b.ints(-1)
        codes = b.add("Concat", b.add("Unsqueeze", low, last), b.add("Unsqueeze", high, last), axis=-1)
    keep = [0] * rank  # as many ids as there are
    codes = b.add("Reshape", codes, b.ints(*keep, blocks, encoding.block))
    numbers = b.add("Sub", b.cast_to(codes, TensorProto.FLOAT), b.number(encoding.zero))
    numbers = b.add("Mul", numbers, _per_block(b, w, "scales", ids))
    if encoding.has_mins:
        numbers = b.add("Sub", numbers, _per_block(b, w, "mins", ids))
    return b.add("Reshape", numbers, b.ints(*keep, k))


def _per_block(b: Lowering, w: Operand, part: str, ids: str) -> str:
    blocks = w.node.dim(0) // ENCODINGS[w.dtype].block
    gathered = b.add("Gather", b.weight_part(w.node, part, TensorProto.FLOAT, (blocks,)), ids)
    return b.add("Unsqueeze", gathered, b.ints(-1))


def _native_product(b: Lowering, w: Operand, x: str, rank: int, expert: int | None) -> str:
    """By code of ours, which reads weights as they are stored: columns become codes once for all weights they meet."""
    rows, format_ = w.node.dim(1), b.native.formats[w.dtype.name]
    x, inner = (b.before_shaping(x), w.node.dim(0)) if rank == 2 else (x, 0)
    codes = b.add("Columns", x, domain=DOMAIN, format=format_, inner=inner)
    return b.add(
        "Products", b.value(w.node, "raw"), codes, domain=DOMAIN, format=format_, first=(expert or 0) * rows,
        rows=rows,
    )  # fmt: skip


def _nbits(
    b: Lowering, w: Operand, x: str, expert: int | None, codes: str, scales: str, zeros: str | None = None
) -> str:
    encoding, (k, n) = ENCODINGS[w.dtype], (w.node.dim(0), w.node.dim(1))
    blocks, bits = k // encoding.block, encoding.bits if codes == "codes" else 4
    if b.settings.standard:
        return _dequantized(b, w, x, expert, (codes, scales), bits, centred=zeros is None)
    b.note_packed(w.node, k * n * bits // 8 + (0 if b.settings.exact else 8 * blocks * n))
    inputs = [
        b.weight_part(w.node, codes, TensorProto.UINT8, (blocks, encoding.block * bits // 8), expert),
        b.weight_part(w.node, scales, TensorProto.FLOAT, (blocks,), expert),
    ]
    if zeros:
        inputs.append(b.constant(np.zeros(n * ((blocks + 1) // 2), np.uint8)))
    return b.add(
        "MatMulNBits", x, *inputs, domain=CONTRIB, K=k, N=n, bits=bits, block_size=encoding.block,
        accuracy_level=EXACT if b.settings.exact else FAST,
    )  # fmt: skip


def _dequantized(
    b: Lowering, w: Operand, x: str, expert: int | None, parts: tuple[str, str], bits: int, *, centred: bool
) -> str:
    """The product of _nbits in standard ops: the codes are multiplied with their scales first."""
    (k, n), kind = w.node.shape[:2], TensorProto.UINT4 if bits == 4 else TensorProto.UINT8
    block = ENCODINGS[w.dtype].block
    codes = b.weight_part(w.node, parts[0], kind, (k,), expert)
    scales = b.weight_part(w.node, parts[1], TensorProto.FLOAT, (k // block,), expert)
    middle = 1 << (bits - 1)
    count = -(-n * (k // block) * bits // 8)
    raw = bytes([middle | middle << 4 if bits == 4 else middle]) * count
    zeros = [b.raw_constant(kind, (n, k // block), raw)] if centred else []
    weight = b.add("DequantizeLinear", codes, scales, *zeros, axis=1, block_size=block)
    return b.add("MatMul", x, b.transposed(weight, 1, 0))


def _shift(b: Lowering, w: Operand, x: str, rank: int, expert: int | None) -> str:
    """The correction: the sum of each block of x times the shift of the block of w."""
    encoding: PackedEncoding = ENCODINGS[w.dtype]
    blocks = w.node.dim(0) // encoding.block
    pieces = b.add("Reshape", x, b.ints(*[0] * (rank - 1), blocks, encoding.block))
    ones = b.constant(np.ones((encoding.block, 1), np.float32))  # a ReduceSum of no tokens has a wrong shape
    sums = b.add("Squeeze", b.add("MatMul", pieces, ones), b.ints(-1))
    shift = b.weight_part(w.node, "shift", TensorProto.FLOAT, (blocks,), expert)
    return fused_product(b, sums, shift, 2)


def fused_product(
    b: Lowering, x: str, w: str, rank: int, *, transpose: bool = True, batch: bool = False, alpha: float = 1.0
) -> str:
    """x times w, whose last two of `rank` axes are exchanged, times alpha; leading axes broadcast.

    With `batch`, the axes of w's slices stand behind that of its rows.
    """
    if b.has("FusedMatMul") and not b.settings.standard:
        return b.add(
            "FusedMatMul", x, w, domain=CONTRIB, transB=int(transpose), transBatchB=int(batch), alpha=alpha
        )
    axes = list(range(rank))
    if batch:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if transpose:
        axes[-2:] = axes[:-3:-1]
    y = b.add("MatMul", x, b.transposed(w, *axes))
    return y if alpha == 1 else b.add("Mul", y, b.number(alpha))


def _rounded_activations(node: Node) -> int:
    """Of quantized weights: rounded activations, and a second product, which is added."""
    weight, x = node.operands
    return 4 * node.size + 2 * x.size if is_packed(weight) else 0


@kernel(ops.mulmat_full_prec, working_memory=_rounded_activations)
@kernel(ops.mulmat, working_memory=_rounded_activations)
def mulmat(b: Lowering, w: Operand, x: Operand) -> str:
    if x.dim(0).same(0):  # ONNX Runtime leaves a product of no terms unwritten
        return b.zeros([w.dim(1), *x.dims()[1:]])
    rank = max(x.rank, 2)
    value = x.of_rank(rank)
    if w.dim(2).same(1) and w.dim(3).same(1):
        y = packed_product(b, w, value, rank) or _dense_product(b, w, value, rank)
        return b.ranked(y, rank, max(x.rank, 1))
    if w.dim(2).fits(x.dim(2)) and w.dim(3).fits(x.dim(3)):
        rank = max(x.rank, w.rank)
        y = fused_product(b, x.of_rank(rank), w.of_rank(w.rank), w.rank)
        return b.ranked(y, rank, max(x.rank, 1))
    return _grouped(b, w, x)


def _dense_product(b: Lowering, w: Operand, x: str, rank: int) -> str:
    """x, of a rank, times w transposed."""
    if rank == 2 and not b.has("FusedMatMul"):
        return b.add("Gemm", x, w.of_rank(2), transB=1)
    return fused_product(b, x, w.of_rank(2), 2)


def _grouped(b: Lowering, w: Operand, x: Operand) -> str:
    """Consecutive slices of x share one slice of w: they become more rows of x, or one more axis."""
    n, (k, m, xa, xb) = w.dim(1), x.dims(4)
    wa, wb = w.dim(2), w.dim(3)
    if wb.fits(xb):
        y = fused_product(b, b.shaped(x.floats, [k, m * (xa // wa), wa, xb]), w.of_rank(4), 4)
    else:
        value = b.shaped(x.floats, [k, m * (xa // wa), wa, xb // wb, wb])
        y = fused_product(b, value, b.shaped(w.floats, [k, n, wa, 1, wb]), 5)
    return b.shaped(y, [n, *x.dims()[1:]])


def native_codes_memory(formats: Collection[str]) -> Measure:
    """Of native code: columns in codes, which products of weights in some formats read."""

    def measure(node: Node) -> int:
        weight, x = node.operands
        return (
            2 * x.size if is_packed(weight) and weight.dtype.name in formats else _rounded_activations(node)
        )

    return measure


def _rows_of_experts(node: Node) -> int:
    """The rows of two experts, as one's block seldom fits the next, the products of all, and the places of their rows."""
    weight, _, ids = node.operands
    return 2 * 4 * node.size + 10 * weight.dim(0) * ids.size


@kernel(ops.mulmat_id, working_memory=_rows_of_experts)
def mulmat_id(b: Lowering, w: Operand, x: Operand, ids: Operand) -> str:
    """One product for each expert with the tokens that chose it; its rows are scattered into the result."""
    k, n, used, tokens = w.dim(0), w.dim(1), ids.dim(0), ids.dim(1)
    places = used * tokens
    if n.same(0) or places.same(0):
        return b.zeros([n, used, tokens])
    if b.settings.plain:
        return _gathered_products(b, w, x, ids)
    one_row = x.dim(1).same(1) and not used.same(1)
    chosen = b.cast_to(b.shaped(ids.stored, [places]), TensorProto.INT64)
    rows = b.shaped(x.floats, [k, tokens if one_row else places])
    found: list[str] = []
    made: list[str] = []
    for expert in range(w.dim(2).pin()):
        index = b.add("NonZero", b.add("Equal", chosen, b.ints(expert)))  # (1, places of this expert)
        index = b.shaped(index, [-1])
        row = b.add("Div", index, b.scalar(used)) if one_row else index
        taken, one = b.add("Gather", rows, row), b.constant(np.array(expert, np.int64))
        y = packed_product(b, w, taken, 2, expert)
        made.append(y or fused_product(b, taken, b.add("Gather", w.of_rank(3), one), 2))
        found.append(index)
    blank = b.zeros([n, places])
    if not made:
        return b.shaped(blank, [n, used, tokens])
    index = b.shaped(_joined(b, found), [1, -1])
    y = b.add("ScatterND", blank, index, _joined(b, made))
    return b.shaped(y, [n, used, tokens])


def _gathered_products(b: Lowering, w: Operand, x: Operand, ids: Operand) -> str:
    """A product for each place, with its own copy of the weights: much memory, but nodes that all engines know."""
    weights = b.add("Gather", w.of_rank(3), b.cast_to(ids.stored, TensorProto.INT64))  # (tokens, used, n, k)
    columns = b.shaped(x.floats, [1, x.dim(0), x.dim(1), x.dim(2)])
    return b.shaped(b.add("MatMul", weights, columns), [w.dim(1), ids.dim(0), ids.dim(1)])


def _joined(b: Lowering, pieces: list[str]) -> str:
    """Pieces, any of which may be empty, one after the other."""
    return b.add("Concat", *pieces, axis=0, label="ConcatPieces")
