"""Matrix products, dense and by expert, in the form in which the CPU reads large weights the fastest.

With few columns, the CPU waits for memory. ggml's code for one column reads one row after the other, which is the
slowest on some CPUs, and the fastest on others; llamafile's code reads four rows at a time, but serves two columns or
more. A trial tells. With many columns, their places in memory decide how long they stay in the first cache.

Native code of ours turns columns into codes once, for all quantized weights that they meet. A column's result does not
depend on the number of columns. So one column takes this way, too: ggml's code for it waits for memory just as long.
"""

from __future__ import annotations

from backbay import DType, Node, ops
from backbay.internals import contiguous_strides
from backbay_native import ENTRY, MOST_ALONE

from ..devices.known_faults import PRODUCT_NAN, REPEATED_IDS
from ..library.abi import FULL_PRECISION, NULL, Ptr, ffi, tensor_address, view_owner
from ..library.avoidance import HALF_SUMS, ROWS_OVERWRITTEN, SLOW_COLUMNS, VIEWS_OF_EXPERTS
from ..lowering.builder import GgmlBuilder, kernel
from ..tensors.tensor_builder import four_dimensions
from ..weights.arrangements import EXTRA_ROWS, REPACK, WeightArrangement, faster_in_llamafile

FEW = 32  # columns; with more, the form of the last ones matters little
LARGE = 1 << 20  # bytes of weights; smaller ones stay in the caches
SET_COLUMNS = 8  # columns that fit into one set of the first cache, if all begin at the same offset of a page
HALF_PAGE = 2048  # bytes
BLOCK = 32  # numbers of a column with one scale, in codes
TILE = 4  # columns that repacked weights are multiplied with at a time; the rest follows one by one


@kernel(ops.mulmat)
def mulmat(g: GgmlBuilder, w: Node, x: Node) -> Ptr:
    return _product(g, w, x, full=False)


@kernel(ops.mulmat_full_prec)
def mulmat_full_prec(g: GgmlBuilder, w: Node, x: Node) -> Ptr:
    if w.dtype is not DType.F16 or not g.library.sums_in_half or not g.avoids(HALF_SUMS):
        return _product(g, w, x, full=True)
    return mul_mat(g, g.rows(w, DType.F32), g.rows(x, DType.F32), full=True)


@kernel(ops.mulmat_id)
def mulmat_id(g: GgmlBuilder, w: Node, x: Node, ids: Node) -> Ptr:
    if g.on_cpu and w.dtype.name in g.library.native.formats_of_experts:
        return _multiply_natively_by_experts(g, w, x, ids)
    experts, columns, chosen = g.rows(w), _activation(g, w, x), g.raw(ids)
    if not g.on_cpu and g.avoids(VIEWS_OF_EXPERTS):
        # Vulkan's code reads all ids as if they adjoined, ends the process at columns that do not adjoin, and rounds experts
        # that do not adjoin to f16.
        experts, columns, chosen = g.contiguous(experts), g.contiguous(columns), g.with_rows(chosen)
    used, tokens = chosen.ne[0], chosen.ne[1]
    if ids.op is ops.top_k or used == 1 or not g.fails(REPEATED_IDS):
        return _by_experts(g, experts, columns, chosen)
    # Each pair of a token and an id becomes a token with one id.
    inner, pairs = columns.ne[0], used * tokens
    columns = g.reshape(g.call("repeat_4d", columns, inner, used, tokens, 1), inner, 1, pairs)
    made = _by_experts(g, experts, columns, g.reshape(g.contiguous(chosen), 1, pairs))
    return g.reshape(made, made.ne[0], used, tokens)


def _by_experts(g: GgmlBuilder, experts: Ptr, columns: Ptr, ids: Ptr) -> Ptr:
    made = g.call("mul_mat_id", experts, columns, ids)
    if g.fails(PRODUCT_NAN):  # Vulkan's code heeds this for experts in f16 alone
        made.op_params[0] = FULL_PRECISION
    return made


def _multiply_natively_by_experts(g: GgmlBuilder, w: Node, x: Node, ids: Node) -> Ptr:
    columns, chosen, experts = g.rows(x, DType.F32), g.raw(ids), w.dim(2)
    number = ffi.cast("void *", g.library.native.formats_of_experts[w.dtype.name])

    def tabulate() -> Ptr:
        size, count = experts + 1 + 3 * ids.size, ffi.cast("void *", experts)
        return g.custom("pairs", (size, 1, 1, 1), [chosen], count, dtype=DType.I32, threads=1)

    table = g.once(chosen, f"pairs of {experts}", tabulate)

    def encode() -> Ptr:
        entries = x.dim(0) // BLOCK * ENTRY // DType.F32.type_size, ids.size, 1, 1
        return g.custom("expert_columns", entries, [columns, table], number)

    codes = g.once(columns, f"codes for {w.dtype} by {tensor_address(table)}", encode)
    shape = w.dim(1), *four_dimensions(ids)[:2], 1
    return g.product_op("expert_products", shape, [g.rows(w), codes, table], number, by_ids=True)


@kernel(ops.add_id)
def add_id(g: GgmlBuilder, x: Node, t2: Node, ids: Node) -> Ptr:
    rows = g.floats(t2)
    if rows.op and g.avoids(ROWS_OVERWRITTEN):  # by the result, while ggml still reads them
        g.lib.ggml_set_output(view_owner(rows))
    return g.call("add_id", g.floats(x), rows, g.dense(ids))


def _product(g: GgmlBuilder, w: Node, x: Node, *, full: bool) -> Ptr:
    """The product of two nodes; `full` asks for sums in f32 on every device."""
    weights = g.product(w) or g.rows(w)
    product = _multiply_native(g, w, weights, x)
    if product is not None:
        return g.reshape(product, w.dim(1), *four_dimensions(x)[1:])
    if weights.extra != NULL:  # an arrangement may require all columns in one matrix
        columns = g.reshape(g.floats(x), x.dim(0), x.size // x.dim(0))
    else:
        columns = _activation(g, w, x) if g.on_cpu else g.rows(x, DType.F32)
    is_small = w.nbytes < LARGE or not g.on_cpu or not g.avoids(SLOW_COLUMNS)
    if is_small or columns.ne[1] >= FEW or columns.ne[2] * columns.ne[3] != 1:
        product = _multiply(g, w, weights, columns, full=full)
    else:
        product = _few(g, w, weights, g.cast(columns, DType.F32), full=full)
    return g.reshape(product, w.dim(1), *four_dimensions(x)[1:])


def _multiply_native(g: GgmlBuilder, w: Node, weights: Ptr, x: Node) -> Ptr | None:
    """The product by native code; None if that does not take it."""
    format_ = w.dtype.name if weights.extra == NULL else f"{w.dtype.name}_X8"
    if not g.on_cpu or format_ not in g.library.native.formats or four_dimensions(w)[2:] != (1, 1):
        return None
    if weights.extra != NULL:
        kind = g.arrangement(w)
        if kind is None or kind.name != REPACK or w.dtype not in kind.native:
            return None
        # ggml runs only its own products on the buffer of rearranged weights.
        rearranged = weights
        weights = g.once(rearranged, "without a buffer", lambda: g.without_buffer(rearranged))
    # All columns adjoin, if they stand in several matrices.
    columns = g.rows(x, DType.F32) if four_dimensions(x)[2:] == (1, 1) else g.floats(x)
    number, count = ffi.cast("void *", g.library.native.formats[format_]), x.size // x.dim(0)
    shape = w.dim(1), count, 1, 1
    if count == 1 and x.dim(0) <= MOST_ALONE:
        return g.product_op("product_alone", shape, [weights, columns], number)

    def encode() -> Ptr:
        matrix = g.reshape(columns, x.dim(0), count)
        entries = x.dim(0) // BLOCK * ENTRY // DType.F32.type_size, count, 1, 1
        return g.custom("columns", entries, [matrix], number)

    codes = g.once(columns, f"codes for {w.dtype}", encode)
    return g.product_op("products", shape, [weights, codes], number)


def _activation(g: GgmlBuilder, w: Node, x: Node) -> Ptr:
    """The second operand of a product: unchanged if the kernel takes its dtype, else as f32."""
    taken = x.dtype is DType.F32 or x.dtype is g.library.activation(w.dtype)
    return g.rows(x, None if taken else DType.F32)


def _few(g: GgmlBuilder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    count = columns.ne[1]
    kind = _arrangement(g, w, weights)
    if kind is not None and kind.name == REPACK and count % TILE >= 2:
        return _wider(g, w, weights, columns, count + TILE - count % TILE, full=full)
    if weights.extra == NULL and count == 1 and w.dtype in faster_in_llamafile(g.library):
        if w.dtype is not DType.Q8_0:
            return _wider(g, w, weights, columns, 2, full=full)
        if g.lib.ggml_is_contiguous(weights) and g.has_signs(w):
            return _exchanged(g, weights, columns, full=full)
    return _multiply(g, w, weights, columns, full=full)


def _wider(g: GgmlBuilder, w: Node, weights: Ptr, columns: Ptr, count: int, *, full: bool) -> Ptr:
    """A product with added columns, which hold any numbers and whose results are dropped."""
    held, rows = columns.ne[1], columns.ne[0]

    def widen() -> Ptr:
        if count % held:
            return g.padded(columns, 0, count - held)
        return g.call("repeat_4d", columns, rows, count, 1, 1)  # faster, where the count allows it

    wide = _multiply(g, w, weights, g.once(columns, f"{count} columns", widen), full=full)
    ne = (wide.ne[0], held, 1, 1)
    return g.view(wide, DType.F32, ne, contiguous_strides(DType.F32, ne), 0)


def _exchanged(g: GgmlBuilder, weights: Ptr, column: Ptr, *, full: bool) -> Ptr:
    """A product of q8_0 weights and one column with the operands exchanged: the weights become the columns.

    ggml negates codes of columns, and -128 has no opposite: weights with such a code are not exchanged.
    """
    row = g.once(column, "q8_0", lambda: g.cast(column, DType.Q8_0))
    return g.reshape(mul_mat(g, row, weights, full=full), weights.ne[1])


def _multiply(g: GgmlBuilder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    """A product, with more rows if the columns would evict each other from the first cache."""
    kind = _arrangement(g, w, weights)
    evicting = columns.ne[1] > SET_COLUMNS and 4 * w.dim(1) % HALF_PAGE == 0
    if kind is None or w.dtype not in kind.spaced or not evicting:
        return mul_mat(g, weights, columns, full=full)
    longer = g.with_more_rows(weights, w.dim(1) + EXTRA_ROWS)
    product = mul_mat(g, longer, columns, full=full)
    ne = (w.dim(1), product.ne[1], 1, 1)
    return g.call("cont", g.view(product, DType.F32, ne, tuple(product.nb), 0))


def _arrangement(g: GgmlBuilder, w: Node, weights: Ptr) -> WeightArrangement | None:
    return g.arrangement(w) if weights.extra != NULL and g.on_cpu else None


def mul_mat(g: GgmlBuilder, w: Ptr, x: Ptr, *, full: bool = False) -> Ptr:
    """A product of ggml's; sums are in f32 if `full` asks for it, or the device's sums in f16 lose NaN."""
    product = g.call("mul_mat", w, x)
    if full or g.fails(PRODUCT_NAN):
        g.lib.ggml_mul_mat_set_prec(product, FULL_PRECISION)
    return product
