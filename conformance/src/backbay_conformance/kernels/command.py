"""Prove that one kernel computes its op: drawn calls against a formula, with a bound for each element."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from backbay.cli import file_to_write, say, whole, write_text

from ..report.report import Outcome, Report, as_json
from ..report.terminal import show
from ..runner.selection import RUN_SIZES
from .check import KernelCheck


class ConformKernelCommand:
    """Prove that one kernel computes its op: drawn calls against a formula, with a bound for each element.

    Exit status 0: something ran, and all of it passed; 1: something failed, or nothing could run.
    """

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        add = parser.add_argument
        add("kernel", help="a function with the op's parameters, as module:function")
        add("op", help="the op that it computes")
        add(
            "--native",
            nargs="?",
            const=True,
            default=False,
            metavar="FUNCTION",
            help="the kernel gets operands as they are stored: NumPy's views, or what this function makes of them, such as "
            "torch:from_dlpack",
        )
        add(
            "--precision",
            default="f32",
            help="the dtype of sums (f32), or those of rounded activations and of sums, as in f16/f32",
        )
        add("--dtypes", default="", help="only calls with these dtypes, separated by commas")
        add("--size", choices=RUN_SIZES, default="default", help="how many calls are drawn (default)")
        add("--seed", type=whole(0), default=0, help="seed of all random choices (0)")
        add("--json", type=file_to_write, help="write the report to this file")

    def run(self, args: Namespace, /) -> int:
        check = KernelCheck(
            args.kernel,
            args.op,
            native=args.native,
            precision=args.precision,
            dtypes=args.dtypes,
            size=args.size,
            seed=args.seed,
        )
        profiles = tuple(dict.fromkeys(item.profile for item in check.items))
        report = Report(args.kernel, args.seed, args.size, profiles, planned=len(check.items))
        started = time.monotonic()

        def done(outcome: Outcome) -> None:
            shown = outcome.script or outcome.check in ("crash", "hang")
            report.add(check.with_program(outcome) if shown else outcome)

        check.run_isolated(done)
        report.seconds = time.monotonic() - started
        show(report, sys.stdout, traces=args.debug, way="--json FILE writes")
        if report.failures:
            say(f"\n{check.op.name}: {check.op.doc}")
        if args.json:
            write_text(Path(args.json), as_json(report))
        return 0 if report.ok else 1


command = ConformKernelCommand()
