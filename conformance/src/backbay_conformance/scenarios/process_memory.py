"""Bookings against the process: the memory report agrees with what the process really holds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from backbay import Backend, BackendMemory, DeclaredUnsupportedError, DType
from backbay.plugin import human_bytes

from ..draw.draw import Draw
from ..draw.model_file import write_model
from ..numbers.comparison import Fault
from ..suite.lab import Lab, lab_for
from ..suite.scenario import scenario

WIDTH, BLOCKS, TOKENS, CELLS = (
    256,
    96,
    64,
    12 << 10,
)  # small products: few backends book what a kernel works in
PEAK = Path("/proc/self/clear_refs")
PART, SLACK = 4, 6 << 20
"""The report and the process may differ by a part of the report, and by bytes for what NumPy and Python hold."""


class Held(NamedTuple):
    """Bytes of the report, and the most that the process grew by: its own pages, and mapped ones."""

    booked: int
    grown: int


@scenario("memory", smoke=1, default=2, nightly=5)
def the_report_agrees_with_the_process(lab: Lab, draw: Draw) -> None:
    """Weights, a cache and a graph make a fresh process grow by what is booked; on other devices nothing is compared."""
    if not PEAK.exists():
        return  # only Linux tells the largest resident memory, and forgets it
    with tempfile.TemporaryDirectory() as folder:
        path = model(Path(folder) / "weights.gguf")
        held = in_child(lab, path) if lab.spec else measured(lambda: lab.fresh(path))
    if held is None:
        return
    allowed = held.booked // PART + SLACK
    if abs(held.grown - held.booked) > allowed:
        raise Fault(
            "memory",
            f"{human_bytes(held.booked)} are booked, but the process grew by {human_bytes(held.grown)}; they may "
            f"differ by {human_bytes(allowed)}",
        )


def model(path: Path) -> Path:
    """A file of many weights."""
    weight = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
    return write_model(path, BLOCKS, ((f"blk.{n}.w.weight", DType.F32, weight) for n in range(BLOCKS)))


def in_child(lab: Lab, path: Path) -> Held | None:
    """The measurement in a fresh process."""
    program = f"from {__name__} import main; main()"
    told = json.dumps([lab.spec, lab.opening.as_dict(), str(path)])
    done = subprocess.run([sys.executable, "-c", program, told], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise Fault("memory", f"a fresh process ended with exit status {done.returncode}: {last}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if "unsupported" in answer:
        raise DeclaredUnsupportedError(answer["unsupported"])
    return Held(*answer["held"]) if answer["held"] else None


def main() -> None:
    """The child's program."""
    spec, opening, path = json.loads(sys.argv[1])
    lab = lab_for(spec, opening.get("options"), opening.get("device", ""))
    answer: dict[str, Any]
    try:
        answer = {"held": measured(lambda: lab.fresh(Path(path)))}
    except DeclaredUnsupportedError as error:
        answer = {"unsupported": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


def measured(open_backend: Callable[[], Backend]) -> Held | None:
    """The growth at a second opening: libraries, threads and pools remain from the first. None if devices hold memory."""
    used(open_backend())
    gc.collect()
    before = resident("VmRSS")
    PEAK.write_text("5")  # forget the peak
    report = used(open_backend())
    grown = resident("VmHWM") - before
    return None if any(gpu.total() for gpu in report.gpus) else Held(report.total(), grown)


def used(backend: Backend) -> BackendMemory:
    """Load, compute and close; returns the report of the time before."""
    try:
        backend.load()
        with backend.new_context() as ctx:
            cache = ctx.layer(0).zeros(DType.F32, WIDTH, CELLS)
            y = x = ctx.input().from_floats(np.ones((TOKENS, WIDTH), np.float32))
            for n in range(BLOCKS):
                w = backend.get(f"blk.{n}.w.weight")
                assert w is not None
                y = w.mulmat(ctx, y).add(ctx, x)
            ctx.forward(y.copy(ctx, cache.slice(ctx, 1, 0, TOKENS)))
            ctx.compute(y)
            return backend.memory()
    finally:
        backend.close()


def resident(what: str) -> int:
    """VmRSS or VmHWM of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))
