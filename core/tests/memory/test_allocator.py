"""Freed blocks stay with the C library while that is asked for, and go back to the system after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import pathlib, resource
import numpy as np
from backbay.plugin import keep_blocks, keep_large_blocks, return_large_blocks

def faults(count=50, nbytes=1 << 20):
    for _ in range(5):
        np.ones(nbytes, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        np.ones(nbytes, np.uint8)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / count

def resident():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

return_large_blocks()
print(faults() > 200)
keep_blocks(keeps=True)
before = resident()
print(faults() < 20)
blocks = [np.ones(1 << 20, np.uint8) for _ in range(20)]
guards = [np.ones(100, np.uint8) for _ in range(20)]
del blocks
keep_blocks(keeps=False)
print(resident() - before < 4 << 20)
print(faults() > 200)
keep_large_blocks(1 << 25)
for keeps in (True, False):
    keep_blocks(keeps=keeps)  # not less
    print(faults(nbytes=8 << 20) < 20)
return_large_blocks()
print(faults() > 200)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the resident memory")
def test_freed_blocks_are_kept_and_handed_back_as_asked() -> None:
    import ctypes

    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("only the GNU C library can be told")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 7
