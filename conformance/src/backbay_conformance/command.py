"""Prove that a backend keeps the contract: every op, graphs, caches, memory and misuse."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import backbay
from backbay import BackbayError, BackendParams, OptionError
from backbay.cli import (
    add_options,
    file_to_write,
    folder_to_write,
    next_kernels,
    note,
    options_of,
    positive,
    say,
    typed,
    whole,
    write_text,
)

from .checks.witness import witness_name
from .report.certificate import certify, refusals, too_little
from .report.digests import Digests, changed, own_files, sources, suite_files
from .report.html import page
from .report.junit import junit
from .report.known_failures import read_known_failures
from .report.report import OpSpeed, Outcome, Report
from .report.terminal import ProgressBar, show, show_failure
from .report.trust import TRUST_HELP, require_trust
from .runner.items.item_run import drawn_again, is_call
from .runner.op_speeds import speeds
from .runner.replay import as_file, dump, read_file
from .runner.run import run
from .runner.selection import RUN_SIZES, Item, RunSettings
from .runner.stop_listener import StopListener
from .runner.workers.supervisor import WorkerSupervisor, ask_worker
from .suite.extensions import load_extensions
from .suite.lab import OpenSettings, lab_with
from .suite.profiles import PROFILES, STANDARD
from .workloads.model_calls import read_model_calls


def show_next(backend: str, options: Mapping[str, str]) -> None:
    params = BackendParams(alloc_memory=False, options=options)
    with backbay.open(None, backend=backend, params=params) as opened:
        missing, kernels = next_kernels(opened), len(opened.kernels)
    say(f"{backend} has {kernels} kernels")
    seen = ""
    for goal, ops in missing.items():
        say(f"for {goal}{seen}: {', '.join(op.name for op in ops) or 'nothing is missing'}")
        seen = " also"
    first = next((op for ops in missing.values() for op in ops), None)
    if first is not None:
        say(f"\nnext: {typed(first)}\n\n{first.doc}\n")
        say(f"when it is written: backbay conform {backend} --op {first.name} --size smoke")


MOST_JOBS = 1024
TAKEN = {
    "next": {"backend", "option"},
    "repro": {"backend", "option", "device", "like", "against", "timeout", "dump", "trust"},
}
"""The options that another one takes, which runs no calls of the suite's own."""
REFUSED = {"hunt": {"size", "like", "certify", "few_shapes"}, "certify": {"known", "op", "expression"}}
"""The options that another one does not take: nothing may be left out of a certificate."""


class ConformCommand:
    """Prove that a backend keeps the contract: every op against a formula, and graphs, caches, memory and misuse.

    Exit status 0: something ran, and all of it passed; 1: something failed, or nothing could run; 124: stopped by
    --time-limit; 130 and 143: stopped by SIGINT and SIGTERM. A stopped run still reports what has run.
    """

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        add = parser.add_argument
        add("backend", nargs="?", help="an installed backend's name, or module:Class")
        add(
            "--profile",
            action="append",
            help=f"some of {', '.join(PROFILES)}, separated by commas; default: all but large",
        )
        add(
            "--size",
            choices=RUN_SIZES,
            default="default",
            help="how many calls each case gets (default); tiny: one call, and at most 100 in all",
        )
        add(
            "--hunt",
            default="",
            metavar="TIME",
            help="look for the worst inputs of each op and dtype, in place of the usual calls: for 10m, 90s or 1h in all, "
            "or for 500x calls of each",
        )
        add(
            "--few-shapes",
            action="store_true",
            help="for an engine that compiles each graph: as many calls, with other data, of at most about 300 graphs",
        )
        add("--op", action="append", help="only these ops or scenarios, separated by commas")
        add("-k", dest="expression", help="only matching names, as in 'norm and not layer'")
        add("--seed", type=whole(0), default=0, help="seed of all random choices (0)")
        add(
            "--jobs",
            type=whole(1, MOST_JOBS),
            default=max(1, min(2, os.cpu_count() or 1)),
            help="worker processes (%(default)s)",
        )
        add(
            "--timeout",
            type=positive,
            default=60.0,
            metavar="SECONDS",
            help="the most that one call may take (60); a longer call has failed, and the other calls of its op then get "
            "a tenth of this time",
        )
        add("-x", dest="max_failures", action="store_const", const=1, help="stop at the first failure")
        add(
            "--max-failures",
            type=whole(1),
            metavar="N",
            help="stop after so many failures, known ones not counted",
        )
        add(
            "--time-limit",
            type=positive,
            metavar="SECONDS",
            help="stop the run after this time, and report what has run",
        )
        add(
            "--resume",
            action="store_true",
            help="go on with the run that was stopped, if it had the same arguments, and the plugin is as it was",
        )
        add("--known", help="a file of known failures: profile/name/dtype/check reason https://link")
        add(
            "--like",
            metavar="MODEL",
            help="also try the calls that a model makes: a GGUF file, an ONNX model, or a program of torch.export; with "
            "--profile like, try only these",
        )
        add(
            "--against",
            default="",
            metavar="NAME",
            help="a backend that computes each judged call, too (cpu_ref, if it is installed); none: no backend",
        )
        add_options(parser)
        where = parser.add_mutually_exclusive_group()
        where.add_argument("--device", default="", metavar="ID", help="run everything on this device")
        where.add_argument(
            "--devices", action="store_true", help="a run and a report for each device of the backend"
        )
        add("--json", type=file_to_write, help="write the report to this file")
        add("--html", type=file_to_write, help="write the report as a page")
        add("--junit", type=file_to_write, help="write the report for CI servers")
        add(
            "--failures",
            type=folder_to_write,
            help="write a file for each failure into this folder",
            metavar="FOLDER",
        )
        add(
            "--certify",
            nargs="?",
            const=".",
            type=folder_to_write,
            metavar="FOLDER",
            help="write a certificate, a page and a badge into this folder (.)",
        )
        add("--next", action="store_true", help="run nothing; show which kernel to write next, and for what")
        add(
            "--repro",
            help="run a failing call again, from its file in the folder of --failures",
            metavar="FILE",
        )
        add("--trust", action="store_true", help=f"with --repro: {TRUST_HELP}")
        add(
            "--dump",
            type=folder_to_write,
            help="with --repro: write the data of the call as .npy files",
            metavar="FOLDER",
        )

    def run(self, args: Namespace, /) -> int:
        self._refuse_unused(args)
        load_extensions()
        if args.repro:
            return again(args)
        if not args.backend:
            raise BackbayError(
                f"name a backend: {', '.join(sorted(backbay.backends())) or 'none is installed'}"
            )
        args.backend = backbay.choose(args.backend).name
        if args.next:
            show_next(args.backend, options_of(args))
            return 0
        if args.certify and (reasons := too_little(args.size, _list(args.profile) or STANDARD)):
            raise BackbayError(f"--certify: {'; '.join(reasons)}")
        devices, status = [args.device], 0
        if args.devices:  # a worker process opens the backend, whose library may crash
            facts, _ = ask_worker(RunSettings(args.backend, 0, opening=OpenSettings(options_of(args))))
            devices = [device.split()[0] for device in facts["devices"]]
        with StopListener(args.time_limit) as stop:
            for device in devices:
                status = max(status, _tried(args, device, stop))
                if stop.status:
                    break
        return status

    def _refuse_unused(self, args: Namespace) -> None:
        """Refuse an option that another one would leave without effect."""
        parser = ArgumentParser()
        self.add_arguments(parser)
        defaults = vars(parser.parse_args([]))
        given = {name for name, default in defaults.items() if getattr(args, name) != default}
        for mode in TAKEN | REFUSED:
            unused = given - TAKEN[mode] - {mode} if mode in TAKEN else given & REFUSED[mode]
            if mode in given and unused:
                raise BackbayError(f"{_flag(mode)} takes no {' and no '.join(sorted(map(_flag, unused)))}")
        if not args.repro:
            for name in ("dump", "trust"):
                if getattr(args, name):
                    raise BackbayError(f"--{name} needs --repro")


def _flag(name: str) -> str:
    return "-k" if name == "expression" else f"--{name.replace('_', '-')}"


def _tried(args: Namespace, device: str, stop: StopListener) -> int:
    """The exit status of a run on one device, reported."""
    before = own_files(args.backend) if args.certify else {}
    at = f"-{device.replace(':', '')}" if args.devices else ""  # of one run of several, in the names of files
    report = _measured(args, device, at, stop)
    show(report, sys.stdout, traces=args.debug)
    _write_files(report, args, at)
    status = stop.status or (0 if report.ok else 1)
    if not args.certify:
        return status
    return max(status, _certified(report, args.certify, at, before))


def _measured(args: Namespace, device: str, at: str, stop: StopListener) -> Report:
    known = read_known_failures(args.known) if args.known else []
    with ProgressBar(sys.stderr) as bar:

        def ended() -> str:
            bar.tick()
            return stop.reason()

        def tried(outcome: Outcome, total: int) -> None:
            bar.step(outcome, total)
            if outcome.failed and args.failures and not any(line.matches(outcome) for line in known):
                _write_failure(outcome, args, at, OpenSettings(options_of(args), device))

        return run(
            args.backend,
            _list(args.profile),
            args.seed,
            in_process=False,
            ops=_list(args.op),
            size=args.size,
            expression=args.expression,
            jobs=args.jobs,
            timeout=args.timeout,
            stop_after=args.max_failures,
            stop=ended,
            like=args.like,
            known=known,
            options=options_of(args),
            device=device,
            against=args.against,
            resume=args.resume,
            few_shapes=args.few_shapes,
            hunt=args.hunt,
            progress=tried,
        )


def _list(given: Sequence[str] | None) -> Sequence[str] | None:
    """The names given by an option that may be repeated, and may contain commas."""
    return [part.strip() for text in given for part in text.split(",")] if given else None


def _write_files(report: Report, args: Namespace, at: str) -> None:
    """Write the files that are asked for."""
    for path, text in ((args.json, _as_json), (args.html, page), (args.junit, junit)):
        if path:
            write_text(Path(path).with_stem(Path(path).stem + at), text(report))
    if args.failures and report.failures:
        for outcome in report.failures if args.resume else ():  # others were written when they failed
            _write_failure(outcome, args, at, report.opening)
        say(f"{len(report.failures)} failures written to {args.failures + at}; replay with --repro FILE")


def _as_json(report: Report) -> str:
    """The report, its date, and the digests that a certificate has."""
    files = {"suite": sources(suite_files()), "plugin": sources(own_files(report.backend))}
    head = {"issued": datetime.now(UTC).isoformat(timespec="seconds")}
    return (
        json.dumps({**head, **report.as_dict(), "digests": {**files, "calls": report.digests}}, indent=1)
        + "\n"
    )


def _write_failure(outcome: Outcome, args: Namespace, at: str, opening: OpenSettings) -> None:
    """Write the file of a failure, which `--repro` runs again."""
    folder = Path(args.failures + at)
    folder.mkdir(parents=True, exist_ok=True)
    like = str(Path(args.like).absolute()) if args.like else ""
    settings = RunSettings(args.backend, args.seed, opening=opening, like=like)
    path = folder / f"{outcome.item.replace('/', '-')}.json"
    write_text(path, json.dumps(as_file(outcome, settings), indent=1) + "\n")


def _certified(report: Report, folder: str, at: str, before: Digests) -> int:
    """The exit status of a certificate, written if the run earns one; `before`: the plugin's files when it began."""
    changes = changed(before, own_files(report.backend))
    reasons = [*refusals(report), *([changes] if changes else [])]
    if reasons:
        say("no certificate: " + "; ".join(reasons))
        return 1
    report.speeds = _speeds(report)
    written = certify(report, Path(folder), before, at)
    say("certificate: " + ", ".join(str(path) for path in written))
    return 0


def _speeds(report: Report) -> list[OpSpeed]:
    """The speeds that stand beside the proof; without any, the proof holds as well."""
    note("measuring the speed of some ops, beside the reference")
    try:
        return speeds(report.backend, report.opening)
    except Exception as error:  # noqa: BLE001 it has kept the contract
        note(f"no speeds: {type(error).__name__}: {error}")
        return []


def again(args: Namespace) -> int:
    written, item, recorded = read_file(args.repro)
    given = options_of(args)
    if not args.trust:
        asked = {name: value for name, value in written.opening.options.items() if name not in given}
        require_trust(args.repro, "" if args.backend else written.backend, asked, "name it yourself, or ")
    opening = OpenSettings({**written.opening.options, **given}, args.device or written.opening.device)
    backend, like = args.backend or written.backend, args.like or written.like
    against = witness_name(args.against, backend)
    settings = RunSettings(
        backend, written.seed, args.timeout, 0.0, opening=opening, like=like, against=against
    )
    with closing(WorkerSupervisor(settings)) as pool:
        outcome = pool.again(item, recorded)
    if recorded.operands and outcome.call != recorded.call:
        raise OptionError(
            f"{args.repro}: {item} is {outcome.call} now, not {recorded.call}; its program still runs"
        )
    if outcome.failed:
        show_failure(outcome, sys.stdout, traces=args.debug)
    else:
        say(f"{outcome.item} {outcome.status}: {outcome.call}")
    if args.dump:
        _dump(settings, Path(args.dump), item, recorded)
    return int(outcome.failed)


def _dump(settings: RunSettings, folder: Path, item: Item, outcome: Outcome) -> None:
    if not is_call(item):
        raise BackbayError(f"--dump writes the data of a case's call; {item} is a scenario")
    lab = lab_with(settings.backend, settings.opening)
    if settings.like:
        read_model_calls(lab, Path(settings.like))
    try:
        written = dump(folder, *drawn_again(lab, item, outcome, runs=True))
    finally:
        lab.discard()
    say(f"written: {', '.join(map(str, written))}")


command = ConformCommand()
