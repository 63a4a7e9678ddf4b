"""The check of one kernel: the suite's calls of its op, drawn, judged and made small."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import astuple
from itertools import islice
from typing import Any

from backbay import DType
from backbay.plugin import Op, Precision

from ..draw.draw import Draw
from ..report.report import Outcome
from ..runner.items.group_run import GroupRunner
from ..runner.items.item_run import drawn_again
from ..runner.selection import RUN_SIZES, Item, RunSettings, SelectionError, in_rounds, times
from ..runner.workers.supervisor import isolated
from ..suite.case import CASES
from ..suite.lab import OpenSettings, lab_with
from .one_kernel import (
    Kernel,
    OneKernelBackend,
    as_numpy,
    dtypes_of,
    imported,
    named,
    native_of,
    op_of,
    precision_of,
)
from .program import program

ROUNDS = 27
"""So many times the calls of a size are drawn at most, until enough of them have the wanted dtypes."""


class FailedCallError(Exception):
    """A call that the kernel computes wrong, with its outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


class KernelCheck:
    """A kernel with all that it is judged by; `run` judges it here, `run_isolated` in a process of its own."""

    def __init__(
        self,
        kernel: Kernel | str,
        op: str | Op[Any, Any],
        *,
        native: Kernel | str | bool = False,
        precision: Precision | str = "f32",
        dtypes: Iterable[DType | str] | str = (),
        size: str = "default",
        seed: int = 0,
    ) -> None:
        self.op, self.seed = op_of(op), seed
        self.options: dict[str, Any] = {
            "kernel": imported(kernel),
            "op": self.op,
            "native": native_of(native),
            "precision": precision_of(precision),
            "dtypes": dtypes_of(dtypes),
        }
        if self.options["native"] is as_numpy and not self.options["dtypes"]:
            self.options["dtypes"] = tuple(dtype for dtype in DType if dtype is not DType.BF16)
        self.lab = lab_with(OneKernelBackend, OpenSettings(self.options))
        self.lab.backend.close()  # opening it checks the kernel's signature
        self.items = self._planned(size)

    def _planned(self, size: str) -> list[Item]:
        if size not in RUN_SIZES:
            raise SelectionError(f"no size {size!r}; there are {', '.join(RUN_SIZES)}")
        wanted = self.options["dtypes"]
        planned = []
        for profile, name in [key for key, case in CASES.items() if case.op is self.op and key[0] != "large"]:
            count = times(profile, name, size)
            turns: Iterable[int] = range(count)
            if wanted:
                drawn = CASES[profile, name].draw
                many = range(ROUNDS * count)
                fitting = (n for n in many if drawn(Draw(f"{self.seed}", n)).dtype in map(str, wanted))
                turns = islice(fitting, count)
            planned += [Item(profile, name, turn) for turn in turns]
        if not planned:
            raise SelectionError(
                f"no call of {self.op.name} has a first operand of {', '.join(map(str, wanted))}"
            )
        return planned

    def run(self, done: Callable[[Outcome], None]) -> None:
        """Judge the calls in this process."""
        settings = RunSettings(OneKernelBackend.__name__, self.seed)
        with closing(self.lab.backend):
            for items in in_rounds(self.items):
                GroupRunner(self.lab, settings, set(), done).run(items)

    def run_isolated(self, done: Callable[[Outcome], None]) -> None:
        """Judge the calls in another process: a crash or a hang is a failed call."""
        native = self.options["native"]
        texts = {
            "folders": os.pathsep.join(sys.path),
            "kernel": named(self.options["kernel"]),
            "op": self.op.name,
            "native": named(native) if native is not None else "",
            "precision": [*map(str, astuple(self.options["precision"]))],
            "dtypes": ",".join(map(str, self.options["dtypes"])),
        }
        name = f"{OneKernelBackend.__module__}:{OneKernelBackend.__name__}"
        settings = RunSettings(name, self.seed, opening=OpenSettings(texts))
        with closing(isolated(settings, self.items)) as outcomes:
            for outcome in outcomes:
                done(outcome)

    def with_program(self, outcome: Outcome) -> Outcome:
        """The failed outcome, with a program that calls the kernel."""
        profile, name, turn = outcome.item.split("/")
        with suppress(Exception), closing(self.lab.backend) as backend:  # the message is enough
            assert isinstance(backend, OneKernelBackend)
            call, expected, _, dtypes = drawn_again(self.lab, Item(profile, name, int(turn)), outcome)
            outcome.call = str(call)  # without the layouts that need other ops
            outcome.script = program(backend, call, next(iter(expected), None), dtypes[0])
            outcome.packed = False  # only a short program is shown
        return outcome


def check_kernel(
    kernel: Kernel | str,
    op: str | Op[Any, Any],
    *,
    native: Kernel | str | bool = False,
    precision: Precision | str = "f32",
    dtypes: Iterable[DType | str] | str = (),
    size: str = "default",
    isolate: bool = False,
    seed: int = 0,
) -> None:
    """Raise AssertionError, with the smallest failing call and a program, unless a kernel computes its op.

    kernel      a function with the op's parameters, as a KernelBackend has them, or its name as `module:function`
    native      False: it gets floats as f32 arrays of NumPy. True: it gets NumPy's views of the operands as stored;
                bf16, which NumPy lacks, only if `dtypes` has it. A function such as `torch.from_dlpack`: it gets what
                this function makes of a HostArray
    precision   the dtype of its sums, or "f16/f32": it rounds activations to f16, and sums in f32
    dtypes      only calls whose floats and quantized operands have these dtypes
    size        tiny, smoke, default or nightly: the number of calls
    isolate     judge it in a process of its own, as a kernel may crash; the process must be able to import it
    """
    __tracebackhide__ = True  # of pytest
    check = KernelCheck(kernel, op, native=native, precision=precision, dtypes=dtypes, size=size, seed=seed)
    counts: list[str] = []

    def done(outcome: Outcome) -> None:
        if outcome.failed:
            raise FailedCallError(outcome)
        counts.append(outcome.status)

    try:
        (check.run_isolated if isolate else check.run)(done)
    except FailedCallError as failed:
        raise AssertionError(described(check.with_program(failed.outcome))) from None
    if "passed" not in counts:
        raise AssertionError(f"no call of {check.op.name} could be judged, of {len(counts)}")


def described(outcome: Outcome) -> str:
    """The failed call, what is wrong, and the program."""
    return f"{outcome.call}\n  {outcome.check}: {outcome.message}\n\n{outcome.script}"
