"""A run of the suite on one backend, from a program."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from backbay import Backend
from backbay.discovery import entry

from ..checks.witness import witness_name
from ..report.known_failures import KnownFailure, set_known_apart
from ..report.model_call_coverage import ModelCallCoverage
from ..report.report import Outcome, Report
from ..suite.case import CASES
from ..suite.extensions import load_extensions
from ..suite.lab import Lab, OpenSettings, lab_with
from ..suite.profiles import STANDARD
from ..workloads.model_calls import LIKE, read_model_calls
from .items.few_shapes import with_few_shapes
from .items.group_run import GroupRunner
from .items.worst_inputs import hunt_items, run_group
from .journal import Journal
from .selection import (
    Item,
    RunSettings,
    SelectionError,
    effort_of,
    in_rounds,
    items,
    like_items,
    names,
    select,
)
from .workers.supervisor import ask_worker, isolated

Progress = Callable[[Outcome, int], None]  # called with each outcome and the total number of outcomes


def run(
    backend: str | type[Backend],
    profiles: Sequence[str] | None = None,
    seed: int = 0,
    in_process: bool = True,
    ops: Sequence[str] | None = None,
    *,
    size: str = "default",
    expression: str | None = None,
    jobs: int = 1,
    timeout: float = 60.0,
    stop_after: int | None = None,
    stop: Callable[[], str] = lambda: "",
    like: str | Path | None = None,
    known: Sequence[KnownFailure] = (),
    options: Mapping[str, Any] | None = None,
    device: str = "",
    against: str = "",
    resume: bool = False,
    few_shapes: bool = False,
    hunt: str = "",
    progress: Progress | None = None,
) -> Report:
    """Run the selected items on a backend: the name of an installed one, `module:Class`, or a class.

    in_process   False runs each item in a worker process, so that a crash or a hang is one failed item. The backend
                 must then be a name, `module:Class`, or a class that its module has by name
    ops          only the cases of these ops, or scenarios of these names
    size         tiny, smoke, default or nightly: sets the number of calls of each case
    jobs         worker processes at once
    stop_after   end the run after so many failed items, known failures not counted
    stop         asked several times a second: a reason to end the run now, or an empty text
    like         a model file, whose own calls are tried too; only they, if `profiles` is ["like"]
    known        known failures: they do not fail the run, but must occur
    options      of the backend, as BackendParams has them
    device       the device on which everything is placed; by default the backend chooses
    resume       go on with the run with the same arguments that was stopped, in worker processes
    few_shapes   the calls of a case share a few shapes, layouts and attributes, for engines that compile each graph
    hunt         10m, 90s, 1h or 500x: look for the worst inputs of each op and dtype, in place of the usual calls, for
                 this time in all, or for so many calls of each
    against      the witness, which computes each judged call, too; by default the reference, "none" for none
    """
    started = time.monotonic()
    name = backend if isinstance(backend, str) else f"{backend.__module__}:{backend.__qualname__}"
    opening = OpenSettings(dict(options or {}), device)
    against = witness_name(against, name)
    lab = lab_with(backend, opening, against) if in_process else None
    if lab is None and ":" in name:
        entry(name).load()  # mistakes in the name show here; an installed backend is left to the workers
    settings = RunSettings(
        name,
        seed,
        timeout,
        opening=opening,
        like=str(like or ""),
        against=against,
        keeps=not in_process,
        few_shapes=few_shapes,
    )
    chosen = tuple(profiles or STANDARD)
    report = Report(
        name, seed, size, chosen, opening=opening, against=against, few_shapes=few_shapes, hunt=hunt
    )
    planned = _of_the_model(report, settings, lab, ops, expression)
    if hunt:
        planned = hunt_items(select(chosen, ops, expression))
        settings = replace(settings, hunt=effort_of(hunt).shared(len(planned), jobs))
    elif chosen != (LIKE,) or not like:
        others = [profile for profile in chosen if profile != LIKE or not like]
        usual = items(select(others, ops, expression), size)
        planned += with_few_shapes(usual, seed) if few_shapes else usual

    def ended() -> bool:
        report.stopped = report.stopped or stop()
        return bool(report.stopped)

    left, journal = planned, None
    if lab:
        report.facts.update(lab.facts())
        outcomes = run_items(lab, planned, replace(settings, shrink=0.0))
    else:
        journal = Journal(settings, planned)
        earlier, left = journal.resumed() if resume else ([], planned)
        for outcome in earlier:
            report.add(outcome)
        outcomes = isolated(settings, left, jobs, report.facts, ended)
    unknown = 0

    def done(outcome: Outcome) -> bool:
        nonlocal unknown
        if journal is not None:
            journal.add(outcome)
        unknown += outcome.failed and not any(line.matches(outcome) for line in known)
        if stop_after is not None and unknown >= stop_after:
            report.stopped = f"{unknown} failed"
        return ended()

    collect(report, outcomes, len(left), progress, done)
    if journal is not None:
        journal.close(ended=not report.stopped)
    report.planned = len(planned)
    groups = ["/".join(key) for key in (*names(), *((LIKE, name) for _, name in CASES))]
    set_known_apart(report, known, groups)
    report.seconds = time.monotonic() - started
    return report


def collect(
    report: Report,
    outcomes: Generator[Outcome],
    total: int,
    progress: Progress | None,
    done: Callable[[Outcome], bool] = lambda outcome: False,
) -> None:
    """Add the outcomes to the report as they come, until all have come or `done` returns True."""
    with closing(outcomes):
        for outcome in outcomes:
            report.add(outcome)
            if progress is not None:
                progress(outcome, total)
            if done(outcome):
                break


def _of_the_model(
    report: Report, settings: RunSettings, lab: Lab | None, ops: Sequence[str] | None, expression: str | None
) -> list[Item]:
    """The calls of the model that the run imitates, if it imitates one."""
    if not settings.like:
        return []
    path = Path(settings.like)
    if not path.is_file():
        raise SelectionError(f"--like: there is no file {settings.like!r}")
    load_extensions()
    found = read_model_calls(lab, path) if lab else ask_worker(settings)[1]
    report.like = ModelCallCoverage(path.name, found.left_out, found.nodes, found.unmapped)
    return like_items(found.calls, ops, expression)


def run_items(lab: Lab, planned: Iterable[Item], settings: RunSettings) -> Generator[Outcome]:
    """The outcomes of items that run in this process; nothing is made small."""
    try:
        for items in in_rounds(planned):
            outcomes: list[Outcome] = []
            run_group(GroupRunner(lab, settings, set(), outcomes.append), items)
            yield from outcomes
    finally:
        lab.discard()
