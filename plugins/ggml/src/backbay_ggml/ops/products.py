"""Products arranged so that ggml reads large weights the fastest.

Where few columns are multiplied, the CPU waits for the weights' memory. ggml's code for one column reads one row after
the other and waits the longest; llamafile's reads four at a time, but is used for two columns or more. Where many are,
their places in memory decide how long they stay in the first cache.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from backbay import DType, Node
from backbay.plugin import Bytes

from ..library.abi import NULL, Ptr
from ..library.library import Library
from ..weights.arrangements import REPACK, SPACE, Arrangement
from .builder import Builder, four

FULL_PRECISION = 10  # of enum ggml_prec
FEW = 32  # columns; with more, it matters little how the last ones are multiplied
LARGE = 1 << 20  # bytes of weights; fewer stay in the caches
CHUNK = 1 << 12  # blocks that are looked at in one go
SOME = 8  # columns that fit into one set of the first cache, where all begin at the same place of a page
HALF = 2048  # bytes: of a page
TILE = 4  # columns that repacked weights are multiplied with at a time, and the others one by one


def multiply(g: Builder, w: Node, x: Node, *, full: bool) -> Ptr:
    """The product of two nodes, `full` for sums in f32 wherever it runs."""
    weights = g.product(w) or g.rows(w)
    if weights.extra != NULL:  # an arrangement of the CPU's own may want all columns in one matrix
        columns = g.reshape(g.floats(x), x.dim(0), x.size // x.dim(0))
    else:
        columns = activation(g, w, x) if g.on_cpu else g.rows(x, DType.F32)
    if w.nbytes < LARGE or columns.ne[1] >= FEW or columns.ne[2] * columns.ne[3] != 1 or not g.on_cpu:
        product = _multiply(g, w, weights, columns, full=full)
    else:
        product = _few(g, w, weights, g.cast(columns, DType.F32), full=full)
    return g.reshape(product, w.dim(1), *four(x)[1:])


def activation(g: Builder, w: Node, x: Node) -> Ptr:
    """The second operand of a product: as it is where the kernel takes that, else as f32."""
    taken = x.dtype is DType.F32 or x.dtype is g.library.activation(w.dtype)
    return g.rows(x, None if taken else DType.F32)


def _few(g: Builder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    """A product of few columns, by the code that reads the weights the fastest."""
    count = columns.ne[1]
    kind = _arrangement(g, w, weights)
    if kind is not None and kind.name == REPACK and count % TILE >= 2:
        return _wider(g, w, weights, columns, count + TILE - count % TILE, full=full)
    if weights.extra == NULL and count == 1 and _reads_four(g.library):
        if w.dtype in (DType.F16, DType.BF16):
            return _wider(g, w, weights, columns, 2, full=full)
        if w.dtype is DType.Q8_0 and g.lib.ggml_is_contiguous(weights) and g.has_signs(w):
            return _exchanged(g, weights, columns, full=full)
    return _multiply(g, w, weights, columns, full=full)


def _wider(g: Builder, w: Node, weights: Ptr, columns: Ptr, count: int, *, full: bool) -> Ptr:
    """A product with more columns, of whatever numbers, whose products nobody reads."""
    held, rows = columns.ne[1], columns.ne[0]

    def widen() -> Ptr:
        if count % held:
            return g.call("pad_ext", columns, 0, 0, 0, count - held, 0, 0, 0, 0)
        return g.call("repeat_4d", columns, rows, count, 1, 1)  # quicker, where it can be

    wide = _multiply(g, w, weights, g.once(columns, f"{count} columns", widen), full=full)
    return g.first_columns(wide, held)


def _exchanged(g: Builder, weights: Ptr, column: Ptr, *, full: bool) -> Ptr:
    """A product of one column in which that is the weight, and the weights are the columns: q8_0 is for both.

    ggml turns the signs of columns' codes, which -128 has none for: weights with it are multiplied as they are.
    """
    row = g.once(column, "q8_0", lambda: g.cast(column, DType.Q8_0))
    return g.reshape(_mul_mat(g, row, weights, full=full), weights.ne[1])


def _multiply(g: Builder, w: Node, weights: Ptr, columns: Ptr, *, full: bool) -> Ptr:
    """A product whose columns are kept apart where their places in memory would be in each other's way."""
    kind = _arrangement(g, w, weights)
    crowded = columns.ne[1] > SOME and 4 * w.dim(1) % HALF == 0
    if kind is None or w.dtype not in kind.spaced or not crowded:
        return _mul_mat(g, weights, columns, full=full)
    longer = g.longer(weights, w.dim(1) + SPACE)
    return g.first_rows(_mul_mat(g, longer, columns, full=full), w.dim(1))


def _arrangement(g: Builder, w: Node, weights: Ptr) -> Arrangement | None:
    """How weights lie in memory, if they are a copy that is arranged in another way."""
    return g.arrangement(w) if weights.extra != NULL and g.on_cpu else None


def _mul_mat(g: Builder, w: Ptr, x: Ptr, *, full: bool) -> Ptr:
    product = g.call("mul_mat", w, x)
    if full:
        g.lib.ggml_mul_mat_set_prec(product, FULL_PRECISION)
    return product


def has_lowest_code(data: Bytes) -> bool:
    """Whether a code of these blocks of q8_0 is -128."""
    size = DType.Q8_0.type_size
    for start in range(0, data.size, CHUNK * size):
        places = np.flatnonzero(data[start : start + CHUNK * size] == 128)
        if (places % size > 1).any():  # the first two bytes are the scale
            return True
    return False


@cache
def _reads_four(library: Library) -> bool:
    """Whether the library was built with llamafile's kernels for AVX2."""
    features = library.features()
    return "LLAMAFILE" in features and "AVX2" in features
