"""Products of weights and columns, in the form in which the CPU reads large weights the fastest.

With few columns, the CPU waits for memory. ggml's code for one column reads one row after the other, which is the
slowest on some CPUs, and the fastest on others; llamafile's code reads four rows at a time, but serves two columns or
more. A trial tells. With many columns, their places in memory decide how long they stay in the first cache.
"""

from __future__ import annotations

from backbay import DType, Node

from ..devices.fault_cases import PRODUCT_NAN
from ..library.abi import FULL_PRECISION, NULL, Ptr
from ..tensors.layouts import four
from ..weights.arrangements import EXTRA_ROWS, REPACK, Arrangement
from ..weights.trials import other_form_pays
from .builder import Builder
from .native_products import multiply_native

FEW = 32  # columns; with more, the form of the last ones matters little
LARGE = 1 << 20  # bytes of weights; smaller ones stay in the caches
SET_COLUMNS = 8  # columns that fit into one set of the first cache, if all begin at the same offset of a page
HALF_PAGE = 2048  # bytes
TILE = 4  # columns that repacked weights are multiplied with at a time; the rest follows one by one


def multiply(g: Builder, w: Node, x: Node, *, full: bool) -> Ptr:
    """The product of two nodes; `full` asks for sums in f32 on every device."""
    native = multiply_native(g, w, x)
    if native is not None:
        return native
    weights = g.product(w) or g.rows(w)
    if weights.extra != NULL:  # an arrangement may require all columns in one matrix
        columns = g.reshape(g.floats(x), x.dim(0), x.size // x.dim(0))
    else:
        columns = activation(g, w, x) if g.on_cpu else g.rows(x, DType.F32)
    if w.nbytes < LARGE or columns.ne[1] >= FEW or columns.ne[2] * columns.ne[3] != 1 or not g.on_cpu:
        product = _multiply(g, w, weights, columns, full=full)
    else:
        product = _few(g, w, weights, g.cast(columns, DType.F32), full=full)
    return g.reshape(product, w.dim(1), *four(x)[1:])


def activation(g: Builder, w: Node, x: Node) -> Ptr:
    """The second operand of a product: unchanged if the kernel takes its dtype, else as f32."""
    taken = x.dtype is DType.F32 or x.dtype is g.library.activation(w.dtype)
    return g.rows(x, None if taken else DType.F32)


def _few(g: Builder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    """A product of few columns, in the fastest form."""
    count = columns.ne[1]
    kind = _arrangement(g, w, weights)
    if kind is not None and kind.name == REPACK and count % TILE >= 2:
        return _wider(g, w, weights, columns, count + TILE - count % TILE, full=full)
    if weights.extra == NULL and count == 1 and w.dtype in other_form_pays(g.library):
        if w.dtype is not DType.Q8_0:
            return _wider(g, w, weights, columns, 2, full=full)
        if g.lib.ggml_is_contiguous(weights) and g.has_signs(w):
            return _exchanged(g, weights, columns, full=full)
    return _multiply(g, w, weights, columns, full=full)


def _wider(g: Builder, w: Node, weights: Ptr, columns: Ptr, count: int, *, full: bool) -> Ptr:
    """A product with added columns, which hold any numbers and whose results are dropped."""
    held, rows = columns.ne[1], columns.ne[0]

    def widen() -> Ptr:
        if count % held:
            return g.call("pad_ext", columns, 0, 0, 0, count - held, 0, 0, 0, 0)
        return g.call("repeat_4d", columns, rows, count, 1, 1)  # faster, where the count allows it

    wide = _multiply(g, w, weights, g.once(columns, f"{count} columns", widen), full=full)
    return g.first_columns(wide, held)


def _exchanged(g: Builder, weights: Ptr, column: Ptr, *, full: bool) -> Ptr:
    """A product of q8_0 weights and one column with the operands exchanged: the weights become the columns.

    ggml negates codes of columns, and -128 has no opposite: weights with such a code are not exchanged.
    """
    row = g.once(column, "q8_0", lambda: g.cast(column, DType.Q8_0))
    return g.reshape(mul_mat(g, row, weights, full=full), weights.ne[1])


def _multiply(g: Builder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    """A product, with more rows if the columns would evict each other from the first cache."""
    kind = _arrangement(g, w, weights)
    evicting = columns.ne[1] > SET_COLUMNS and 4 * w.dim(1) % HALF_PAGE == 0
    if kind is None or w.dtype not in kind.spaced or not evicting:
        return mul_mat(g, weights, columns, full=full)
    longer = g.with_more_rows(weights, w.dim(1) + EXTRA_ROWS)
    return g.first_rows(mul_mat(g, longer, columns, full=full), w.dim(1))


def _arrangement(g: Builder, w: Node, weights: Ptr) -> Arrangement | None:
    """The arrangement of rearranged weights on the CPU; None for others."""
    return g.arrangement(w) if weights.extra != NULL and g.on_cpu else None


def mul_mat(g: Builder, w: Ptr, x: Ptr, *, full: bool = False) -> Ptr:
    """A product of ggml's; sums are in f32 if `full` asks for it, or the device's sums in f16 lose NaN."""
    product = g.call("mul_mat", w, x)
    if full or g.fails(PRODUCT_NAN):
        g.lib.ggml_mul_mat_set_prec(product, FULL_PRECISION)
    return product
