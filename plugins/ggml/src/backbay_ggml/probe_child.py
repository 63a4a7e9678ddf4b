"""Run as a module, with the name of a buffer type: exits with 0 if it multiplies as plain memory does."""

from __future__ import annotations

import sys

import numpy as np

from backbay import DType

from . import extra
from .abi import NULL, Ptr, ffi
from .builder import Builder, leaf_tensor
from .library import Library, load_library

INNER, ROWS = 512, 64
BATCHES = (1, 2, 5, 33)  # products of one row and of several take different code
CLOSE = 1e-2


def main() -> int:
    """Try every type that the buffer takes."""
    library = load_library()
    kind = extra.buffer_types(library)[sys.argv[1]]
    for dtype in extra.TYPES:
        if not _works(library, kind, dtype):
            sys.stdout.write(f"wrong results for {dtype}")
            return 1
    return 0


def _works(library: Library, kind: Ptr, dtype: DType) -> bool:
    """Whether products with weights in the buffer are those with plain ones, or it does not take the type."""
    lib = library.lib
    plain, packed = (leaf_tensor(dtype, (INNER, ROWS, 1, 1)) for _ in range(2))
    data = _blocks(library, dtype)
    memory = lib.ggml_backend_buft_alloc_buffer(kind, max(data.size, 1) + 4096)
    lib.ggml_backend_buffer_init_tensor(memory, packed)
    if packed.extra == NULL:
        return True
    lib.ggml_backend_tensor_alloc(memory, packed, lib.ggml_backend_buffer_get_base(memory))
    lib.ggml_backend_tensor_set(packed, ffi.from_buffer(data), 0, data.size)
    plain.data = ffi.from_buffer(data)
    return all(
        np.allclose(_product(library, packed, batch), _product(library, plain, batch), rtol=CLOSE, atol=CLOSE)
        for batch in BATCHES
    )


def _blocks(library: Library, dtype: DType) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Random weights, quantized by ggml."""
    numbers = np.random.default_rng(1).standard_normal((ROWS, INNER)).astype(np.float32)
    x = leaf_tensor(DType.F32, (INNER, ROWS, 1, 1))
    x.data = ffi.from_buffer(numbers)
    g = Builder(library, library.cpu, flash=False)
    return _run(library, g, g.call("cast", x, int(dtype)), numbers.size // dtype.block_size * dtype.type_size)


def _product(library: Library, w: Ptr, batch: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    numbers = np.random.default_rng(2).standard_normal((batch, INNER)).astype(np.float32)
    x = leaf_tensor(DType.F32, (INNER, batch, 1, 1))
    x.data = ffi.from_buffer(numbers)
    g = Builder(library, library.cpu, flash=False)
    return _run(library, g, g.call("mul_mat", w, x), 4 * ROWS * batch).view(np.float32)


def _run(
    library: Library, g: Builder, result: Ptr, nbytes: int
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Compute one op into an array."""
    lib, out = library.lib, np.zeros(nbytes + 64, np.uint8)
    result.data = ffi.from_buffer(out)
    pool = lib.ggml_init(
        ffi.new("ggml_init_params *", (lib.ggml_graph_overhead_custom(64, False) + 1024, NULL, True))[0]
    )
    graph = lib.ggml_new_graph_custom(pool, 64, False)
    lib.ggml_build_forward_expand(graph, result)
    plan = ffi.new("ggml_cplan *", lib.ggml_graph_plan(graph, 2, NULL))
    work = np.zeros(plan.work_size + 64, np.uint8)
    plan.work_data = ffi.cast("uint8_t *", work.ctypes.data)
    lib.ggml_graph_compute(graph, plan)
    lib.ggml_free(pool)
    g.close()
    return out[:nbytes]


if __name__ == "__main__":
    sys.exit(main())
