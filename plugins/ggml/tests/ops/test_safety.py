"""No graph that core accepts may kill the process: a short run of the fuzzer, and its findings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backbay import BackbayError, DType

FUZZ = Path(__file__).parents[2] / "tools" / "fuzz.py"


@pytest.mark.parametrize("options", [["--count", "200", "--workers", "2"], ["--count", "50", "--rpc"]])
@pytest.mark.few(1)
def test_random_graphs_kill_no_process(options) -> None:
    done = subprocess.run(
        [sys.executable, str(FUZZ), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "trace",
    [
        lambda c: c.zeros(DType.F32, 1, 1, 1, 1).conv2d(c, c.zeros(DType.F32, 8, 8, 1, 1), 1, 1, 1 << 30, 0),
        lambda c: c.zeros(DType.F32, 1, 1, 1, 1).conv3d(
            c, c.zeros(DType.F32, 8, 8, 8, 1), 1, 1, 1, 1, 1 << 30
        ),
        lambda c: c.zeros(DType.F32, 8, 8).avg_pool2d(c, 1 << 30, 1, float(1 << 30)),
        lambda c: c.zeros(DType.F32, 8, 8).avg_pool2d(c, 2, 1, float(1 << 30)),
        lambda c: c.zeros(DType.F32, 1).pad(c, 1 << 40),
        lambda c: c.zeros(DType.F32, 1).pad(c, (1 << 32) - 2),
        lambda c: c.zeros(DType.F32, 0).repeat_4d(c, 0, 1 << 50),
        lambda c: c.zeros(DType.F32, 1 << 50, 0).sqr(c),
        lambda c: c.zeros(DType.Q8_0, 64, 4).set_rows(c, c.zeros(DType.Q8_0, 64, 1), c.from_ints([0])),
    ],
)
def test_sizes_that_overflow_in_c_are_refused(backend, trace) -> None:
    with backend.new_context() as ctx, pytest.raises(BackbayError):
        ctx.compute(trace(ctx))
