"""What one decode step on ggml's devices copies, submits and waits for, for step_counts.py.

ggml copies each operand that lies elsewhere to the device of the ops that read it, with a wait before it, and waits for all
devices at the end; then the plan reads its outputs, one by one. On Vulkan, a layer counts calls (vulkan_faults.c).
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(tempfile.mkdtemp(prefix="backbay-counts-")) / "counts"
os.environ |= {
    "BACKBAY_VULKAN_FAULTS": "1",
    "BACKBAY_VULKAN_COUNTS": str(FILE),
}  # ggml's library reads them once

from backbay_engine import LLM  # noqa: E402
from backbay_ggml.library.abi import ffi, tensor_address  # noqa: E402
from backbay_ggml.plans.multi_device_plan import MultiDevicePlan, MultiDeviceScheduler  # noqa: E402

# As in vulkan_faults.c.
CALLS = [
    "dispatches",
    "copies",
    "fills",
    "barriers",
    "waits for fences",
    "waits for queues",
    "waits for devices",
    "waits for semaphores",
    "submissions",
    "command buffers",
    "fences found ready",
]


class StepCounts:
    """The number of runs and of placements, and the latest run: its plan, and the calls in it and while outputs are read."""

    latest: MultiDevicePlan

    def __init__(self) -> None:
        self.runs = self.placements = 0
        self.computed, self.read = np.zeros(len(CALLS), np.int64), np.zeros(len(CALLS), np.int64)
        run, place, compute = MultiDeviceScheduler.run, MultiDeviceScheduler._place, MultiDevicePlan._compute

        def counted_run(scheduler: MultiDeviceScheduler, plan: MultiDevicePlan, *args: Any) -> int:
            before = calls()
            status = run(scheduler, plan, *args)
            self.runs += 1
            self.latest, self.computed = plan, calls() - before
            return status

        def counted_place(scheduler: MultiDeviceScheduler, plan: MultiDevicePlan) -> None:
            self.placements += 1
            place(scheduler, plan)

        def counted_compute(plan: MultiDevicePlan, *args: Any) -> None:
            before = calls()
            compute(plan, *args)
            self.read = calls() - before - self.computed

        MultiDeviceScheduler.run, MultiDeviceScheduler._place = counted_run, counted_place  # type: ignore[method-assign]
        MultiDevicePlan._compute = counted_compute  # type: ignore[method-assign]

    def watch(self, llm: LLM) -> AbstractContextManager[None]:
        """While a text is generated."""
        self.runs = self.placements = 0
        return nullcontext()

    def lines(self, llm: LLM) -> list[str]:
        """What the latest run did."""
        plan, lib = self.latest, self.latest._lib
        moved = moved_operands(plan)
        ops = Counter(device.id for _, device in plan.placed_ops)
        return [
            f"{self.runs} runs of plans, {self.placements} of them after the plan was placed",
            f"ops: {dict(ops)}, in {lib.ggml_backend_sched_get_n_splits(plan._scheduler._scheduler)} parts",
            f"operands copied to another device: {len(moved)}",
            *[f"    {plan._library.describe(tensor)}, {lib.ggml_nbytes(tensor)} bytes" for tensor in moved],
            f"outputs copied to the host: {len(plan._copies)}",
            *([f"Vulkan, in the run: {told(self.computed)}"] if self.computed.any() else []),
            *([f"Vulkan, reading outputs: {told(self.read)}"] if self.read.any() else []),
        ]


def calls() -> np.ndarray:
    """The calls so far; none without the layer."""
    counts = np.fromfile(FILE, np.int64) if FILE.exists() else np.zeros(0, np.int64)
    return counts if counts.size else np.zeros(len(CALLS), np.int64)


def told(counts: np.ndarray) -> str:
    return ", ".join(f"{count} {name}" for count, name in zip(counts, CALLS, strict=True) if count)


def moved_operands(plan: MultiDevicePlan) -> list[Any]:
    """The operands in whose place the scheduler has put copies, each once."""
    found = {}
    for tensor, sources in plan._sources:
        usual = ffi.from_buffer("ggml_tensor *[]", sources)
        for now, before in zip(tensor.src, usual, strict=True):
            if now != before:
                found[tensor_address(before)] = before
    return list(found.values())
