"""Native attention: nothing is read past its operands."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from backbay import DType

CACHES = (DType.F32, DType.F16, DType.BF16, DType.Q8_0, DType.Q4_0)


@pytest.mark.skipif(sys.platform != "linux", reason="the test protects pages by mprotect")
@pytest.mark.parametrize("without_avx512", [False, True])
@pytest.mark.parametrize("dtype", CACHES, ids=str)
@pytest.mark.parametrize("queries", [1, 40])
@pytest.mark.few(5)
def test_nothing_is_read_past_the_end_of_a_cache(request, dtype, queries, without_avx512) -> None:
    """In a child process: a page that nobody may read follows the last row of keys and of values."""
    code = request.getfixturevalue("native_code_without_avx512" if without_avx512 else "native_code")
    limit = {"BACKBAY_CPU": "avx2"} if without_avx512 else {}
    program = f"""
import ctypes, mmap, sys
import numpy as np
from pathlib import Path
from backbay import DType
from backbay_native import NativeCode, tensor_of
from backbay_native.calls import run_op

code = NativeCode(Path({str(code.path)!r}))
dtype, width, history, page = DType[{dtype.name!r}], 96, 5, mmap.PAGESIZE
held = []

def cache():
    size = width * history // dtype.block_size * dtype.type_size
    length = -(-size // page) * page
    memory = mmap.mmap(-1, length + page)
    held.append(np.frombuffer(memory, np.uint8))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(held[-1].ctypes.data + length), page, 0) == 0
    return tensor_of(held[-1][length - size : length], dtype, (width, 1, history))

result, query = np.ones(({queries}, 1, width), np.float32), np.ones(({queries}, 1, width), np.float32)
run_op(code, "attention", result, [query, cache(), cache()], 0x3f800000)
assert not result.any()  # all values are 0
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
