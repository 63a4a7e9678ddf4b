"""The child process of a trial: products of one column, as ggml computes them and in other forms.

It prints the dtypes whose products are faster in the form of `one_column`. Weights that the last cache holds tell
nothing, so the matrices are larger.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from backbay import DType
from backbay.internals import Bytes

from ..library.abi import Ptr, ffi
from ..library.library import Library, load_library
from ..tensors.layouts import leaf_tensor
from .trial_process import computing

TYPES = (DType.Q8_0, DType.F16, DType.BF16)
INNER = 2048
NBYTES = 64 << 20
TIMES = 5  # the fastest of so many runs counts
GAIN = 0.9  # limit of the time in the other form


def main() -> int:
    """Try each dtype."""
    library = load_library()
    faster = [str(dtype) for dtype in TYPES if _is_faster(library, dtype)]
    json.dump({"types": faster, "spaced": [], "native": []}, sys.stdout)
    return 0


def _is_faster(library: Library, dtype: DType) -> bool:
    """Whether the other form is faster on one thread, in the thread's own time. Both take turns."""
    data = np.full(NBYTES, 1, np.uint8)
    rows = NBYTES * dtype.block_size // (INNER * dtype.type_size)
    weights = _tensor(dtype, rows, data)
    plain = (weights, _tensor(DType.F32, 1, np.zeros(4 * INNER, np.uint8)))
    if dtype is DType.Q8_0:
        other = (_tensor(dtype, 1, data), weights)
    else:
        other = (weights, _tensor(DType.F32, 2, np.zeros(8 * INNER, np.uint8)))
    result = 2 * 4 * rows
    with (
        computing(library, "mul_mat", *plain, nbytes=result, threads=1) as (compute_plain, _),
        computing(library, "mul_mat", *other, nbytes=result, threads=1) as (compute_other, _),
    ):
        seconds: list[list[float]] = [[], []]
        for _ in range(TIMES):
            for found, compute in zip(seconds, (compute_plain, compute_other), strict=True):
                begun = time.thread_time()
                compute()
                found.append(time.thread_time() - begun)
    return min(seconds[1]) < GAIN * min(seconds[0])


def _tensor(dtype: DType, rows: int, data: Bytes) -> Ptr:
    """A matrix of so many rows; it is valid as long as the data live."""
    made = leaf_tensor(dtype, (INNER, rows, 1, 1))
    made.data = ffi.from_buffer(data)
    return made


if __name__ == "__main__":
    sys.exit(main())
