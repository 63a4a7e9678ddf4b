"""Run as a module, with the name of a buffer type: exits with 0 if it multiplies as plain memory does, and prints for
which dtypes it is worth using, and which of these are `spaced`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np

from backbay import DType, Spec
from backbay.plugin import Bytes

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library, load_library
from ..ops.builder import Builder, leaf_tensor
from . import arrangements as extra
from .arrangements import REPACK, SPACE, Arrangement

INNER, ROWS = 512, 64
BATCHES = (1, 2, 5, 33)  # products of one row and of several take different code
CLOSE = 1e-2
WIDE = 2048  # of the square matrix that is timed
PROMPT = 128  # columns
TIMES = 7  # the quickest of which counts
FASTER, AS_FAST = 0.95, 1.05  # what prompts must take, and what steps may, of the time without it
AS_LARGE = 1.03  # of the size in the file
MUCH_FASTER, LARGER = 0.85, 1.15  # steps for which weights may be so much larger
APART = 0.8  # of the time, for which rows are added; where columns are in each other's way, it is 0.3 to 0.7


def main() -> int:
    """Try every type that the arrangement takes."""
    library = load_library()
    arrangement = Arrangement(library, sys.argv[1])
    for dtype in extra.TYPES:
        if not _works(library, arrangement, dtype):
            sys.stdout.write(f"wrong results for {dtype}")
            return 1
    repack = Arrangement(library, REPACK) if REPACK in extra.buffer_types(library) else None
    pays = [dtype for dtype in extra.TYPES if _pays(library, arrangement, repack, dtype)]
    spaced = [dtype for dtype in pays if _gains_by_space(library, arrangement, dtype)]
    json.dump({"types": list(map(str, pays)), "spaced": list(map(str, spaced))}, sys.stdout)
    return 0


def _pays(library: Library, arrangement: Arrangement, repack: Arrangement | None, dtype: DType) -> bool:
    """Whether an arrangement is used for a type: repacking always is, others if they make prompts faster than repacked
    or plain weights do, steps no slower, and weights no larger, or steps much faster and weights a little larger.
    """
    tensor = arrangement.tensor(dtype, (WIDE, WIDE))
    if tensor is None or arrangement.name == REPACK:
        return tensor is not None
    larger = arrangement.size(tensor) / Spec(dtype, (WIDE, WIDE)).nbytes
    if larger > LARGER:
        return False
    ours = _seconds(library, arrangement, dtype)
    others = _seconds(library, repack, dtype) or _seconds(library, None, dtype)
    allowed = AS_FAST if larger <= AS_LARGE else MUCH_FASTER
    return ours[1] < FASTER * others[1] and ours[0] < allowed * others[0]


def _gains_by_space(library: Library, arrangement: Arrangement, dtype: DType) -> bool:
    """Whether prompts are faster where columns of the product do not all begin at the same place of a page.

    Kernels that add to the columns in turn find them in the way of each other in the first cache otherwise; those
    for repacked weights write each once.
    """
    if arrangement.name == REPACK:
        return False
    apart = _seconds(library, arrangement, dtype, WIDE + SPACE)
    return bool(apart) and apart[1] < APART * _seconds(library, arrangement, dtype)[1]


@cache
def _seconds(
    library: Library, arrangement: Arrangement | None, dtype: DType, rows: int = WIDE
) -> tuple[float, ...]:
    """For a product with one column and with many; empty if the arrangement has none for the type."""
    weights = (
        leaf_tensor(dtype, (WIDE, rows, 1, 1))
        if arrangement is None
        else arrangement.tensor(dtype, (WIDE, rows))
    )
    if weights is None:
        return ()
    data = np.zeros(WIDE * rows // dtype.block_size * dtype.type_size, np.uint8)
    held = _settle(library, arrangement, weights, data)
    found = tuple(_timed(library, weights, batch) for batch in (1, PROMPT))
    library.lib.ggml_backend_buffer_free(held) if held != NULL else None
    return found


def _timed(library: Library, weights: Ptr, batch: int) -> float:
    """Seconds of the quickest of some products, on one thread and of its own time: neighbours may be busy."""
    numbers = np.ones((batch, weights.ne[0]), np.float32)
    x = leaf_tensor(DType.F32, (weights.ne[0], batch, 1, 1))
    x.data = ffi.from_buffer(numbers)
    g = Builder(library, flash=False)
    with _computing(library, g, g.call("mul_mat", weights, x), 4 * weights.ne[1] * batch, 1) as (compute, _):
        seconds = []
        for _ in range(TIMES):
            begun = time.thread_time()
            compute()
            seconds.append(time.thread_time() - begun)
    return min(seconds)


def _settle(library: Library, arrangement: Arrangement | None, weights: Ptr, data: Bytes) -> Ptr:
    """Bring data into an arrangement; returns the buffer that holds them."""
    if arrangement is None:
        weights.data = ffi.from_buffer(data)
        return NULL
    lib = library.lib
    memory = lib.ggml_backend_buft_alloc_buffer(arrangement.kind, arrangement.size(weights) + 4096)
    arrangement.settle(memory, weights, lib.ggml_backend_buffer_get_base(memory))
    lib.ggml_backend_tensor_set(weights, ffi.from_buffer(data), 0, data.size)
    return memory


def _works(library: Library, arrangement: Arrangement, dtype: DType) -> bool:
    """Whether products with rearranged weights are those with plain ones, or there are none."""
    packed, plain = arrangement.tensor(dtype, (INNER, ROWS)), leaf_tensor(dtype, (INNER, ROWS, 1, 1))
    if packed is None:
        return True
    data = _blocks(library, dtype)
    _settle(library, arrangement, packed, data)
    _settle(library, None, plain, data)
    return all(
        np.allclose(_product(library, packed, batch), _product(library, plain, batch), rtol=CLOSE, atol=CLOSE)
        for batch in BATCHES
    )


def _blocks(library: Library, dtype: DType) -> Bytes:
    """Random weights, quantized by ggml."""
    numbers = np.random.default_rng(1).standard_normal((ROWS, INNER)).astype(np.float32)
    x = leaf_tensor(DType.F32, (INNER, ROWS, 1, 1))
    x.data = ffi.from_buffer(numbers)
    g = Builder(library, flash=False)
    return _run(library, g, g.call("cast", x, int(dtype)), numbers.size // dtype.block_size * dtype.type_size)


def _product(library: Library, w: Ptr, batch: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    inner, rows = w.ne[0], w.ne[1]
    numbers = np.random.default_rng(2).standard_normal((batch, inner)).astype(np.float32)
    x = leaf_tensor(DType.F32, (inner, batch, 1, 1))
    x.data = ffi.from_buffer(numbers)
    g = Builder(library, flash=False)
    return _run(library, g, g.call("mul_mat", w, x), 4 * rows * batch).view(np.float32)


def _run(library: Library, g: Builder, result: Ptr, nbytes: int) -> Bytes:
    """Compute one op into an array."""
    with _computing(library, g, result, nbytes, 2) as (compute, out):
        compute()
    return out[:nbytes]


@contextmanager
def _computing(
    library: Library, g: Builder, result: Ptr, nbytes: int, threads: int
) -> Iterator[tuple[Callable[[], None], Bytes]]:
    """What computes one op into an array, and that array."""
    lib, out = library.lib, np.zeros(nbytes + 64, np.uint8)
    result.data = ffi.from_buffer(out)
    room = lib.ggml_graph_overhead_custom(64, False) + 1024
    pool = lib.ggml_init(ffi.new("ggml_init_params *", (room, NULL, True))[0])
    graph = lib.ggml_new_graph_custom(pool, 64, False)
    lib.ggml_build_forward_expand(graph, result)
    plan = ffi.new("ggml_cplan *", lib.ggml_graph_plan(graph, threads, NULL))
    work = np.zeros(plan.work_size + 64, np.uint8)
    plan.work_data = ffi.cast("uint8_t *", work.ctypes.data)
    yield lambda: lib.ggml_graph_compute(graph, plan), out
    lib.ggml_free(pool)
    g.close()


if __name__ == "__main__":
    sys.exit(main())
