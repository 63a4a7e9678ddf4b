"""The child process of a trial of an arrangement, or of another form of products of one column.

It multiplies in an arrangement, compares with plain weights, and times both. It exits with 0 if the results agree, and
prints the dtypes for which the arrangement, or the other form, pays, which of them are `spaced`, and which native code
of ours multiplies.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

import numpy as np

from backbay import DType, Spec
from backbay.internals import Array, Bytes
from backbay_native import multiply, tensor_of

from ..library.abi import NULL, Ptr, ffi, leaf_tensor, new_pool
from ..library.library import Library, load_library
from .arrangements import EXTRA_ROWS, ONE_COLUMN, REPACK, TYPES, WeightArrangement, buffer_types

INNER, ROWS = 512, 64
BATCHES = (1, 2, 5, 33)  # products of one row and of several take different code
CLOSE = 1e-2
WIDE = 2048  # rows and columns of the matrix that is timed
PROMPT = 128  # columns of a prompt
TIMES = 7  # the fastest of so many runs counts
FASTER, AS_FAST = 0.95, 1.05  # limits of the time of prompts and of steps, relative to other arrangements
AS_LARGE = 1.03  # limit of the size, relative to the file
MUCH_FASTER, LARGER = 0.85, 1.15  # larger weights pay as well if steps are this much faster
GAIN = 0.8  # limit of the time with more rows; where columns evict each other, it is 0.3 to 0.7
GRAPH_SIZE = 64
COLUMN_TYPES = (DType.Q8_0, DType.F16, DType.BF16)
COLUMN_BYTES = 64 << 20  # of weights: those that the last cache holds tell nothing
COLUMN_TIMES = 5
COLUMN_GAIN = 0.9  # limit of the time in the other form


def main(name: str) -> int:
    """Try every dtype that the arrangement takes."""
    library = load_library()
    if name == ONE_COLUMN:
        return _tell([dtype for dtype in COLUMN_TYPES if _is_faster_in_other_form(library, dtype)], [], [])
    arrangement = WeightArrangement(library, name)
    for dtype in TYPES:
        if not _works(library, arrangement, dtype):
            sys.stdout.write(f"wrong results for {dtype}")
            return 1
    repack = WeightArrangement(library, REPACK) if REPACK in buffer_types(library) else None
    pays = [dtype for dtype in TYPES if _pays(library, arrangement, repack, dtype)]
    spaced = [dtype for dtype in pays if _gains_by_rows(library, arrangement, dtype)]
    return _tell(pays, spaced, [dtype for dtype in pays if _takes_native(library, arrangement, dtype)])


def _tell(types: Sequence[DType], spaced: Sequence[DType], native: Sequence[DType]) -> int:
    found = {"types": types, "spaced": spaced, "native": native}
    json.dump({key: list(map(str, dtypes)) for key, dtypes in found.items()}, sys.stdout)
    return 0


def _pays(
    library: Library, arrangement: WeightArrangement, repack: WeightArrangement | None, dtype: DType
) -> bool:
    """Whether to use an arrangement for a dtype: repacking always.

    Others must make prompts faster than repacked (or plain) weights do, and steps not slower, with weights as large.
    Slightly larger weights are accepted if steps become much faster.
    """
    tensor = arrangement.tensor(dtype, (WIDE, WIDE))
    if tensor is None or arrangement.name == REPACK:
        return tensor is not None
    relative_size = arrangement.size(tensor) / Spec(dtype, (WIDE, WIDE)).nbytes
    if relative_size > LARGER:
        return False
    step, prompt = _seconds(library, arrangement, dtype)
    other_step, other_prompt = _seconds(library, repack, dtype) or _seconds(library, None, dtype)
    allowed = AS_FAST if relative_size <= AS_LARGE else MUCH_FASTER
    return prompt < FASTER * other_prompt and step < allowed * other_step


def _gains_by_rows(library: Library, arrangement: WeightArrangement, dtype: DType) -> bool:
    """Whether prompts are faster if the product's columns do not all begin at the same offset of a page.

    Kernels that add to several columns in turn evict them from the first cache otherwise. Kernels for repacked
    weights write each column once.
    """
    if arrangement.name == REPACK:
        return False
    longer = _seconds(library, arrangement, dtype, WIDE + EXTRA_ROWS)
    return bool(longer) and longer[1] < GAIN * _seconds(library, arrangement, dtype)[1]


def _takes_native(library: Library, arrangement: WeightArrangement, dtype: DType) -> bool:
    """Whether native products with rearranged weights equal those with plain ones, to the bit."""
    native, name = library.native, f"{dtype.name}_X8"
    if arrangement.name != REPACK or name not in native.formats:
        return False
    data = _random_blocks(library, dtype)
    packed: Ptr = arrangement.tensor(dtype, (INNER, ROWS))
    _fill(library, arrangement, packed, data)
    rearranged = np.frombuffer(ffi.buffer(packed.data, data.size), np.uint8)
    x = np.random.default_rng(3).standard_normal((5, INNER)).astype(np.float32)
    found, right = (
        multiply(native, native.formats[format_], tensor_of(blocks, dtype, (INNER, ROWS)), x)
        for format_, blocks in ((name, rearranged), (dtype.name, data))
    )
    return np.array_equal(found, right)


@cache
def _seconds(
    library: Library, arrangement: WeightArrangement | None, dtype: DType, rows: int = WIDE
) -> tuple[float, ...]:
    """The times of a step's and of a prompt's product; empty if the arrangement does not take the dtype."""
    make = leaf_tensor if arrangement is None else arrangement.tensor
    weights = make(dtype, (WIDE, rows))
    if weights is None:
        return ()
    data = np.zeros(WIDE * rows // dtype.block_size * dtype.type_size, np.uint8)
    held = _fill(library, arrangement, weights, data)
    found = []
    for batch in (1, PROMPT):
        x = np.ones((batch, weights.ne[0]), np.float32)
        with _product(library, weights, x, threads=1) as (compute, _):
            found.append(min(_time_of(compute) for _ in range(TIMES)))
    library.lib.ggml_backend_buffer_free(held) if held != NULL else None
    return tuple(found)


def _time_of(compute: Callable[[], None]) -> float:
    """Seconds of the thread's own time: neighbours may be busy."""
    begun = time.thread_time()
    compute()
    return time.thread_time() - begun


def _fill(library: Library, arrangement: WeightArrangement | None, weights: Ptr, data: Bytes) -> Ptr:
    """Give weights their data, in an arrangement or as they are; returns the buffer, which may be NULL."""
    if arrangement is None:
        weights.data = ffi.from_buffer(data)
        return NULL
    lib = library.lib
    memory = lib.ggml_backend_buft_alloc_buffer(arrangement.buffer_type, arrangement.size(weights) + 4096)
    arrangement.place(memory, weights, lib.ggml_backend_buffer_get_base(memory))
    lib.ggml_backend_tensor_set(weights, ffi.from_buffer(data), 0, data.size)
    return memory


def _floats(array: Array) -> Ptr:
    """A tensor of an array; it is valid as long as the array lives."""
    return leaf_tensor(DType.F32, array.shape[::-1], array)


def _works(library: Library, arrangement: WeightArrangement, dtype: DType) -> bool:
    """Whether products with rearranged weights equal products with plain ones, if the dtype is taken at all."""
    packed, plain = arrangement.tensor(dtype, (INNER, ROWS)), leaf_tensor(dtype, (INNER, ROWS))
    if packed is None:
        return True
    data = _random_blocks(library, dtype)
    _fill(library, arrangement, packed, data)
    _fill(library, None, plain, data)
    return all(
        np.allclose(
            _multiplied(library, packed, batch), _multiplied(library, plain, batch), rtol=CLOSE, atol=CLOSE
        )
        for batch in BATCHES
    )


def _random_blocks(library: Library, dtype: DType) -> Bytes:
    numbers = np.random.default_rng(1).standard_normal((ROWS, INNER)).astype(np.float32)
    nbytes = numbers.size // dtype.block_size * dtype.type_size
    operands = _floats(numbers), int(dtype)
    with _computing(library, "cast", *operands, nbytes=nbytes, threads=2) as (compute, out):
        compute()
        return out[:nbytes]


def _multiplied(library: Library, w: Ptr, batch: int) -> Array:
    x = np.random.default_rng(2).standard_normal((batch, w.ne[0])).astype(np.float32)
    with _product(library, w, x, threads=2) as (compute, out):
        compute()
        return out[: 4 * w.ne[1] * batch].view(np.float32)


def _product(
    library: Library, w: Ptr, x: Array, *, threads: int
) -> AbstractContextManager[tuple[Callable[[], None], Bytes]]:
    return _computing(library, "mul_mat", w, _floats(x), nbytes=4 * w.ne[1] * len(x), threads=threads)


def _is_faster_in_other_form(library: Library, dtype: DType) -> bool:
    """Whether another form of a product of one column is faster than ggml's on one thread. Both take turns."""
    data = np.full(COLUMN_BYTES, 1, np.uint8)
    rows = COLUMN_BYTES * dtype.block_size // (WIDE * dtype.type_size)
    weights = leaf_tensor(dtype, (WIDE, rows), data)
    column, two = np.zeros((1, WIDE), np.float32), np.zeros((2, WIDE), np.float32)
    exchanged = leaf_tensor(dtype, (WIDE, 1), data), weights
    forms = (weights, _floats(column)), exchanged if dtype is DType.Q8_0 else (weights, _floats(two))
    with ExitStack() as opened:
        computes = [
            opened.enter_context(_computing(library, "mul_mat", *form, nbytes=2 * 4 * rows, threads=1))[0]
            for form in forms
        ]
        seconds = [[_time_of(compute) for compute in computes] for _ in range(COLUMN_TIMES)]
    plain, other = map(min, zip(*seconds, strict=True))
    return bool(other < COLUMN_GAIN * plain)


@contextmanager
def _computing(
    library: Library, name: str, *operands: Any, nbytes: int, threads: int
) -> Iterator[tuple[Callable[[], None], Bytes]]:
    """A function that computes one op, and the array that gets the result."""
    lib, out = library.lib, np.zeros(nbytes + 64, np.uint8)
    pool = new_pool(lib, lib.ggml_graph_overhead_custom(GRAPH_SIZE, False) + 4 * lib.ggml_tensor_overhead())
    try:
        result = getattr(lib, f"ggml_{name}")(pool, *operands)
        result.data = ffi.from_buffer(out)
        graph = lib.ggml_new_graph_custom(pool, GRAPH_SIZE, False)
        lib.ggml_build_forward_expand(graph, result)
        plan = ffi.new("ggml_cplan *", lib.ggml_graph_plan(graph, threads, NULL))
        work = np.zeros(plan.work_size + 64, np.uint8)
        plan.work_data = ffi.cast("uint8_t *", work.ctypes.data)
        yield lambda: lib.ggml_graph_compute(graph, plan), out
    finally:
        lib.ggml_free(pool)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
