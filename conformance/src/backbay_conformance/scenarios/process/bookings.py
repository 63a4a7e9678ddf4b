"""Bookings against the process: the memory report agrees with what the process really holds."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import numpy as np

from backbay import Backend, BackendMemory, Context, DeclaredUnsupportedError, DType, RefusalError, Tensor
from backbay.internals import return_large_blocks

from ...draw.draw import Draw
from ...draw.model_file import write_model
from ...fault import require
from ...suite.lab import Lab, OpenSettings, lab_with, scenario

WIDTH, BLOCKS, TOKENS, CELLS = 256, 96, 64, 12 << 10  # small products: few backends book a kernel's memory
QUANTIZED = (DType.Q4_0, DType.Q8_0, DType.Q4_K, DType.Q6_K)
EACH = 40
"""Quantized weights of each dtype: as f32, those of one are more than the report and the process may differ by."""
LARGE = 12 << 20
"""Elements of the only weight of a file: a copy of it is more than the report and the process may differ by."""
HELD = 48
TURNS = 2
"""Contexts that run the same graph: what a closed one leaves behind counts as memory that is not booked."""
PEAK = Path("/proc/self/clear_refs")
PART, SLACK = 4, 6 << 20
"""The report and the process may differ by a part of the report, and by bytes for what NumPy and Python hold."""


class StageGrowth(NamedTuple):
    """The growth of a process since the measurement began, in bytes: the most within a stage, and the pages at its end."""

    name: str
    most: int
    own: int  # anonymous pages, private and shared
    of_files: int

    def __str__(self) -> str:
        most, own, of_files = map(mib, self[1:])
        return f"{self.name}: at most {most}; at the end {own} of its own pages, {of_files} of files"


class BookingMeasurement(NamedTuple):
    """Bytes of the report, and the growth of the process."""

    booked: int
    stages: list[StageGrowth]

    @property
    def grown(self) -> int:
        return max(stage.most for stage in self.stages)

    def __str__(self) -> str:
        return f"{mib(self.booked)} are booked, the process grew by {mib(self.grown)}"


class MemoryMeter:
    """Measures the memory that this process took since the measurement began, stage by stage."""

    def __init__(self) -> None:
        self._before = resident()
        self.stages: list[StageGrowth] = []
        PEAK.write_text("5")  # forget the peak

    def end(self, stage: str) -> None:
        now = resident()
        grown = {pages: now[pages] - self._before[pages] for pages in now}
        most = now["VmHWM"] - self._before["VmRSS"]
        self.stages.append(StageGrowth(stage, most, grown["RssAnon"] + grown["RssShmem"], grown["RssFile"]))
        PEAK.write_text("5")


@scenario("memory", smoke=1, default=8, nightly=16)
def the_report_agrees_with_the_process(lab: Lab, draw: Draw) -> None:
    """A fresh process grows by what is booked, most of it weights, results or working memory.

    The memory of other devices is not compared.
    """
    if not PEAK.exists():
        return  # only Linux tells the largest resident memory, and forgets it
    mostly = draw.by_turn(*MOSTLY)
    told = f"mostly {mostly} ({str(MOSTLY[mostly].__doc__).partition('.')[0]})"
    draw.note(told)
    with tempfile.TemporaryDirectory() as folder:
        path = MODELS[mostly](Path(folder) / "weights.gguf") if mostly in MODELS else None
        held = in_child(lab, path, mostly) if lab.spec else measured(lambda: lab.fresh(path), mostly)
    if held is None:
        return
    allowed = held.booked // PART + SLACK
    judged = f"{held}; they may differ by {mib(allowed)}"
    message = "\n    ".join([f"mostly {mostly}: {judged}", *map(str, held.stages)])
    require(abs(held.grown - held.booked) <= allowed, message)
    draw.note(f"{told}: {judged}")


def model(path: Path) -> Path:
    weight = np.full((WIDTH, WIDTH), 1 / WIDTH, np.float32)
    return write_model(path, BLOCKS, ((f"blk.{n}.w.weight", DType.F32, weight) for n in range(BLOCKS)))


def large_model(path: Path) -> Path:
    return write_model(
        path, 1, [("blk.0.w.weight", DType.F32, np.full((LARGE // WIDTH, WIDTH), 0.5, np.float32))]
    )


def quantized_model(path: Path) -> Path:
    """A file of many quantized weights; bytes of 0x11 are small numbers in each dtype."""
    weights = {dtype: np.full((WIDTH, dtype.row_size(WIDTH)), 0x11, np.uint8) for dtype in QUANTIZED}
    listed = [dtype for dtype in QUANTIZED for _ in range(EACH)]
    named = ((f"blk.{n}.w.weight", dtype, weights[dtype]) for n, dtype in enumerate(listed))
    return write_model(path, len(listed), named)


UNSUPPORTED = {kind.__name__: kind for kind in (DeclaredUnsupportedError, RefusalError)}


def in_child(lab: Lab, path: Path | None, mostly: str) -> BookingMeasurement | None:
    program = f"from {__name__} import main; main()"
    task = json.dumps([lab.spec, lab.opening.as_dict(), path and str(path), mostly])
    done = subprocess.run([sys.executable, "-c", program, task], capture_output=True, text=True, check=False)
    last = done.stderr.strip().rpartition("\n")[2]
    require(not done.returncode, f"a fresh process ended with exit status {done.returncode}: {last}")
    held, unsupported = json.loads(done.stdout.splitlines()[-1])
    if unsupported:
        kind, text = unsupported
        raise UNSUPPORTED[kind](text)
    return held and BookingMeasurement(held[0], [StageGrowth(*stage) for stage in held[1]])


def main() -> None:
    spec, opening, path, mostly = json.loads(sys.argv[1])
    lab = lab_with(spec, OpenSettings.from_dict(opening))
    held, unsupported = None, None
    try:
        held = measured(lambda: lab.fresh(path and Path(path)), mostly)
    except tuple(UNSUPPORTED.values()) as error:
        unsupported = type(error).__name__, str(error)
    sys.stdout.write(json.dumps([held, unsupported]) + "\n")


def measured(open_backend: Callable[[], Backend], mostly: str) -> BookingMeasurement | None:
    """The growth at a second opening: libraries, threads and pools remain from the first. None if devices hold memory."""
    return_large_blocks()  # holes between kept ones would count as growth
    used(open_backend(), MOSTLY[mostly], MemoryMeter(), 1)
    gc.collect()
    growth = MemoryMeter()
    report = used(open_backend(), MOSTLY[mostly], growth, TURNS)
    return (
        None if any(gpu.total() for gpu in report.gpus) else BookingMeasurement(report.total(), growth.stages)
    )


def used(backend: Backend, trace: Trace, growth: MemoryMeter, turns: int) -> BackendMemory:
    """Load, compute in several contexts, one after the other, and close; returns the report of the last one's time."""
    try:
        backend.load()
        growth.end("opened and loaded")
        report = backend.memory()
        for turn in range(1, turns + 1):
            with backend.new_context() as ctx:
                traced = trace(ctx)
                growth.end(f"context {turn} filled its leaves")
                ctx.compute(traced)
                growth.end(f"context {turn} computed")
                report = backend.memory()
        return report
    finally:
        backend.close()
        growth.end("closed")


def of_weights(ctx: Context) -> Tensor:
    """A layer for each weight, and a cache."""
    cache = ctx.layer(0).zeros(DType.F32, WIDTH, CELLS)
    y = through_layers(ctx, BLOCKS)
    ctx.forward(y.copy(ctx, cache.slice(ctx, 1, 0, TOKENS)))
    return y


def of_quantized_weights(ctx: Context) -> Tensor:
    """A layer for each weight; decoded copies would be many times as large."""
    return through_layers(ctx, EACH * len(QUANTIZED))


def of_a_large_weight(ctx: Context) -> Tensor:
    """One weight, of which a copy to load it from must not stay."""
    w = ctx.backend.get("blk.0.w.weight")
    assert w is not None
    return w.mulmat(ctx, ctx.input().from_floats(np.ones((1, WIDTH), np.float32)))


def through_layers(ctx: Context, layers: int) -> Tensor:
    y = x = ctx.input().from_floats(np.ones((TOKENS, WIDTH), np.float32))
    for n in range(layers):
        w = ctx.backend.get(f"blk.{n}.w.weight")
        assert w is not None
        y = w.mulmat(ctx, y).add(ctx, x)
    return y


def of_results(ctx: Context) -> Tensor:
    """Results of a MiB each, all of which are there before the first is read."""
    x = ctx.input().from_floats(np.ones((256, 1024), np.float32))
    made = [x.scale(ctx, 1.0 + n) for n in range(HELD)]
    ctx.forward(*made)
    return reduce(lambda total, y: total.add(ctx, y), made).sum_rows(ctx)


def of_working_memory(ctx: Context) -> Tensor:
    """Products with large weights of f16, which a kernel may convert."""
    x = ctx.input().from_floats(np.ones((8, 4096), np.float32))
    w = ctx.zeros(DType.F16, 4096, 4096)
    return w.mulmat(ctx, x).add(ctx, x)


def of_attention(ctx: Context) -> Tensor:
    """Attention whose scores are more than all its operands."""
    q = ctx.input().zeros(DType.F32, 16, 8, 384)
    k, v = (ctx.zeros(DType.F32, 16, 1, 2048) for _ in range(2))
    return q.scaled_dot_product_attention(ctx, k, v, scale=0.25)


def of_experts(ctx: Context) -> Tensor:
    """Products of many tokens with one expert several times, whose rows a kernel may gather."""
    x = ctx.input().zeros(DType.F32, 512, 1, 2560)
    w = ctx.zeros(DType.F32, 512, 16, 4)
    ids = ctx.input().from_ints(np.full((2560, 4), 2))
    return w.mulmat_id(ctx, x, ids).sum_rows(ctx)


def of_windows(ctx: Context) -> Tensor:
    """A convolution whose windows overlap, so that all of them are many times the image."""
    x = ctx.input().zeros(DType.F32, 96, 96, 16)
    w = ctx.zeros(DType.F32, 7, 7, 16, 1)
    return w.conv2d(ctx, x, p0=3, p1=3)


Trace = Callable[[Context], Tensor]
MOSTLY: dict[str, Trace] = {
    "weights": of_weights,
    "quantized weights": of_quantized_weights,
    "results": of_results,
    "working memory": of_working_memory,
    "attention": of_attention,
    "experts": of_experts,
    "windows": of_windows,
    "a large weight": of_a_large_weight,
}
"""Graphs by what most of their memory is for."""
MODELS: dict[str, Callable[[Path], Path]] = {
    "weights": model,
    "quantized weights": quantized_model,
    "a large weight": large_model,
}


def mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


def own_pages() -> int:
    """The bytes of this process that no file backs, private ones and those of shared mappings."""
    now = resident()
    return now["RssAnon"] + now["RssShmem"]


def resident() -> dict[str, int]:
    """The resident memory of this process in bytes: the most (VmHWM), and now (VmRSS), also by kind of page."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kinds = ("VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem")
    return {kind: int(line.split()[1]) << 10 for line in lines for kind in kinds if line.startswith(kind)}
