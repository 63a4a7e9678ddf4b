"""The threads that share the parts of custom ops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from model_file import quantized, write_model
from native_sources import ALWAYS_CALM, compiled

from backbay import DType
from backbay_native import NativeCode

CHILD = """
import os, sys, threading
import numpy as np
import backbay

def product(threads, rounds=200):
    params = backbay.BackendParams(num_threads=threads)
    with backbay.open(sys.argv[1], backend="onnx", params=params) as backend, backend.new_context() as ctx:
        backend.load()
        x = ctx.from_floats(np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 512))
        y = backend.get("blk.0.q").mulmat(ctx, x)
        made = set()
        for _ in range(rounds):
            ctx.compute(y)
            made.add(y.numpy().tobytes())
    return made

def products():
    found = []
    at_once = [threading.Thread(target=lambda n=n: found.append(product(n))) for n in (2, 3, 5)]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    return set().union(*found)

alone = product(1, 1)
assert products() == alone
child = os.fork()
if child == 0:
    ended = 1
    try:
        ended = int(products() != alone)
    finally:
        os._exit(ended)
assert os.waitpid(child, 0)[1] == 0
assert products() == alone
print("equal")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "win32", reason="no forks")
def test_threads_of_many_sessions_and_of_a_forked_child_make_equal_products(
    native: NativeCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DType.Q4_0.name not in native.formats:
        pytest.skip("no native code for this processor")
    weights = {"blk.0.q": (DType.Q4_0, quantized(np.random.default_rng(3), DType.Q4_0, 512, 9600))}
    path = write_model(tmp_path / "model.gguf", weights, block_count=1)
    monkeypatch.setenv("BACKBAY_ONNX_NATIVE", str(compiled(ALWAYS_CALM)))
    command = [sys.executable, "-c", CHILD, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.strip() == "equal", ended.stderr
