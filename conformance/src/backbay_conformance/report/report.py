"""The outcome of each item, and the outcomes of a run, counted by op and dtype."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from ..numbers.comparison import ENOUGH, Extremes, Shares, WorstElement, keep_worse
from ..suite.lab import PLAIN, OpenSettings
from ..suite.profiles import FIRST_ROUND, SUITE_VERSION
from .digests import digest
from .model_call_coverage import ModelCallCoverage


@dataclass
class Outcome:
    """The result of one item: `status` is passed, failed or unsupported.

    check     the check that failed: bound, exact, bits, repeat, replay, inputs, storage, guards, raised,
              over-claimed, under-claimed, crash, hang, or the name of a relation
    ratio     the largest error / bound, if results were compared with a bound
    tight     by check: the compared elements whose bound is finite and tight, and all compared elements
    choices   the drawn choices; with the item they give the same call again
    variant   which of a failed call's data its operands held, and, in `operands`, the bytes of each, packed
    """

    item: str
    status: str = "passed"
    dtype: str = ""
    level: str = ""
    mode: str = ""
    precision: str = ""
    check: str = ""
    message: str = ""
    call: str = ""
    kind: str = ""  # op, dtypes, layouts and size classes, of a refused call, or if the run imitates a model
    refused: bool = False  # the backend refused it, or a part of it, when it compiled
    elements: int = 0  # of all operands of a case's call
    ratio: float | None = None
    seconds: float = 0.0
    choices: list[int] = field(default_factory=list)
    variant: int = 0
    operands: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    tight: Shares = field(default_factory=dict)
    extremes: Extremes = field(default_factory=dict)  # of a hunt
    graphs: list[str] = field(default_factory=list)  # that were compiled for the first time in this process
    difference: str = ""  # what is wrong with the witness' result, where that of the backend is right
    script: str = ""
    trace: str = ""  # the traceback of an error of the backend
    packed: bool = False  # the program holds data that nobody can read
    again: bool = False  # it failed in the last run, too, and is none of the planned calls
    count: int = 1  # the number of similar failures, of which only one is shown

    @property
    def profile(self) -> str:
        return self.item.split("/")[0]

    @property
    def name(self) -> str:
        return self.item.split("/")[1]

    @property
    def turn(self) -> int:
        """The turn of its item; -1 for a call that is tried again."""
        last = self.item.rpartition("/")[2]
        return int(last) if last.isdecimal() else -1

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    def as_dict(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in asdict(self).items()
            if key not in ("trace", "operands", "graphs") and value not in ("", None, [], {}, 0)
        }


SMALL_SIZES = ("tiny", "smoke")  # they draw too little for a certificate

STATES = ("full", "composite", "partial", "unsupported", "failing", "over-claimed", "under-claimed")
"""The states of a backend for an op and a dtype; the last three fail the run."""
GOOD, BAD = STATES[:4], STATES[4:]
BINS = (0.0, 0.01, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # lower edges of the histogram of error / bound


def add_shares(whole: Shares, part: Shares) -> None:
    for check, (tight, elements) in part.items():
        own = whole.setdefault(check, [0, 0])
        own[0], own[1] = own[0] + tight, own[1] + elements


@dataclass
class TableCell:
    """A cell of the report's table: all outcomes of one op, or scenario, and one dtype."""

    profile: str
    name: str
    dtype: str
    passed: int = 0
    failed: int = 0
    unsupported: int = 0
    refused: int = 0  # unsupported calls, and calls whose composite ran in the place of a kernel
    levels: set[str] = field(default_factory=set)
    bad: set[str] = field(default_factory=set)
    checks: dict[str, int] = field(default_factory=dict)
    ratios: list[int] = field(default_factory=lambda: [0] * len(BINS))
    worst: float = 0.0
    extremes: Extremes = field(default_factory=dict)
    seconds: float = 0.0
    precisions: set[str] = field(default_factory=set)
    tight: Shares = field(default_factory=dict)
    why_not: str = ""  # the reason of the first unsupported call
    differing: int = 0  # calls in which the witness differs from the formula, and the backend does not
    difference: str = ""  # the first of them

    @property
    def state(self) -> str:
        if self.bad:
            return max(self.bad, key=BAD.index)
        if not self.passed:
            return "unsupported"
        if self.levels == {"composite"}:
            return "composite"
        return "partial" if self.refused else "full"

    def add(self, outcome: Outcome) -> None:
        self.seconds += outcome.seconds
        self.levels |= {outcome.level} if outcome.level and outcome.status == "passed" else set()
        self.precisions |= {outcome.precision} if outcome.precision else set()
        self.refused += outcome.refused
        if outcome.failed:
            self.failed += outcome.count
            self.bad.add(outcome.check if outcome.check in BAD else "failing")
        elif outcome.status == "unsupported":
            self.unsupported += 1
            self.why_not = self.why_not or outcome.message
        else:
            self.passed += 1
        if outcome.difference:
            self.differing += 1
            self.difference = self.difference or f"{outcome.call}: {outcome.difference}"
        keep_worse(
            self.extremes, {measure: WorstElement(*worst) for measure, worst in outcome.extremes.items()}
        )
        add_shares(self.tight, outcome.tight)
        for check in outcome.checks:
            self.checks[check] = self.checks.get(check, 0) + 1
        if outcome.ratio is not None:
            self.worst = max(self.worst, outcome.ratio)
            self.ratios[sum(outcome.ratio >= edge for edge in BINS) - 1] += 1

    def as_dict(self) -> dict[str, Any]:
        plain = {key: value for key, value in vars(self).items() if not isinstance(value, set)}
        levels, precisions = sorted(self.levels), sorted(self.precisions)
        extremes = {measure: worst._asdict() for measure, worst in self.extremes.items()}
        own = {"state": self.state, "levels": levels, "precisions": precisions, "extremes": extremes}
        return {**plain, **own}


@dataclass(frozen=True)
class OpSpeed:
    """The seconds of an op for some tokens, and how many times faster it is than the reference."""

    op: str
    dtype: str
    tokens: int
    seconds: float
    times: float


class Refusal(NamedTuple):
    """Calls that the backend refused when it compiled: their op or scenario, dtype, kind, and the reason."""

    name: str
    dtype: str
    kind: str
    reason: str


@dataclass
class Report:
    """All outcomes of a run. It is `ok` if it ran to its end, something passed, and nothing failed but as known."""

    backend: str
    seed: int
    size: str
    profiles: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    cells: dict[tuple[str, str, str], TableCell] = field(default_factory=dict)
    failures: list[Outcome] = field(default_factory=list)
    known: list[Outcome] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)  # about the file of known failures, or about the run
    slowest: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    like: ModelCallCoverage | None = None
    planned: int = 0  # the number of calls of a whole run
    opening: OpenSettings = PLAIN
    stopped: str = ""  # why the run ended before its end
    against: str = ""  # the witness
    few_shapes: bool = False
    graphs: set[str] = field(default_factory=set)
    hunt: str = ""  # its time or number of calls, if the run was a hunt
    speeds: list[OpSpeed] = field(default_factory=list)  # of a backend that earns a certificate
    first_calls: dict[str, dict[int, str]] = field(default_factory=dict)  # of each case, by turn
    refusals: Counter[Refusal] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        key = (outcome.profile, outcome.name, outcome.dtype)
        self.cells.setdefault(key, TableCell(*key)).add(outcome)
        self.graphs.update(outcome.graphs)
        if self.like is not None:
            self.like.add(outcome)
        if outcome.refused:
            self.refusals[Refusal(outcome.name, outcome.dtype, outcome.kind, outcome.message)] += 1
        if outcome.dtype and 0 <= outcome.turn < FIRST_ROUND:
            self.first_calls.setdefault(f"{outcome.profile}/{outcome.name}", {})[outcome.turn] = outcome.call
        self.slowest = sorted([*self.slowest, outcome], key=lambda o: -o.seconds)[:20]
        if outcome.failed:
            self.failures.append(outcome)

    @property
    def digests(self) -> dict[str, str]:
        """A digest of the first calls of each case."""
        calls = sorted(self.first_calls.items())
        return {group: digest(call for _, call in sorted(turns.items())) for group, turns in calls}

    @property
    def title(self) -> str:
        """The backend, with its options and the device on which everything is placed."""
        more = [f"{name}={value}" for name, value in self.opening.options.items()]
        more += [f"on {self.opening.device}"] if self.opening.device else []
        return f"{self.backend} ({', '.join(more)})" if more else self.backend

    @property
    def counts(self) -> dict[str, int]:
        """The number of calls that passed, failed, failed as known, or are unsupported."""
        return {
            "passed": sum(cell.passed for cell in self.cells.values()),
            "failed": sum(outcome.count for outcome in self.failures),
            "known": sum(outcome.count for outcome in self.known),
            "unsupported": sum(cell.unsupported for cell in self.cells.values()),
        }

    @property
    def ok(self) -> bool:
        return not (self.failures or self.complaints or self.stopped) and self.has_passed

    @property
    def has_passed(self) -> bool:
        """Whether something passed: a call of an op, if calls of ops are refused, as misuse may be refused without one."""
        calls = [cell for cell in self.cells.values() if cell.dtype] if self.refusals else []
        return any(cell.passed for cell in calls or self.cells.values())

    @property
    def verdict(self) -> str:
        if self.ok:
            return "keeps the contract" + (" but for its known failures" if self.known else "")
        if self.stopped and not (self.failures or self.complaints):
            return "proves nothing: the run was stopped"
        return "does not keep the contract" if self.has_passed else "nothing passed"

    @property
    def tried(self) -> int:
        return sum(cell.passed + cell.failed + cell.unsupported for cell in self.cells.values())

    @property
    def ending(self) -> str:
        """How a run ended that was stopped; empty if it ran to its end."""
        return f"stopped after {self.tried} of {self.planned} calls: {self.stopped}" if self.stopped else ""

    @property
    def refused_share(self) -> float:
        """The share of calls that the backend refused, its composites' included."""
        return self.refusals.total() / self.tried if self.tried else 0.0

    @property
    def tightness(self) -> dict[tuple[str, str], dict[str, float]]:
        """For each case or scenario and each check, the share of elements whose bound is finite and tight."""
        found: dict[tuple[str, str], Shares] = {}
        for cell in self.cells.values():
            add_shares(found.setdefault((cell.profile, cell.name), {}), cell.tight)
        return {
            key: {check: tight / elements for check, (tight, elements) in shares.items() if elements}
            for key, shares in sorted(found.items())
            if shares
        }

    @property
    def loose(self) -> list[tuple[float, str]]:
        """The checks of cases and scenarios that judge too few elements, the loosest first."""
        rows = [("/".join(key), row) for key, row in self.tightness.items()]
        named = [(share, f"{name} {check}") for name, row in rows for check, share in row.items()]
        return sorted(pair for pair in named if pair[0] < ENOUGH)

    @property
    def extent(self) -> str:
        """How much was tried."""
        tried = f"hunt {self.hunt}" if self.hunt else f"size {self.size}"
        return f"{tried}, few shapes: {len(self.graphs)} different graphs" if self.few_shapes else tried

    @property
    def worst_first(self) -> list[TableCell]:
        """All cells, those of a hunt by their largest error / bound."""
        return sorted(
            self.cells.values(), key=lambda cell: -cell.extremes["share"].share if cell.extremes else 0.0
        )

    @property
    def witnessed(self) -> dict[str, int]:
        """The number of calls that the witness computed, too, and of those in which it alone is wrong; empty for none."""
        compared = sum(cell.checks.get("against", 0) for cell in self.cells.values())
        differing = sum(cell.differing for cell in self.cells.values())
        return {"compared": compared, "differing": differing} if compared else {}

    @property
    def states(self) -> dict[str, int]:
        found = [cell.state for cell in self.cells.values() if cell.dtype]
        return {state: found.count(state) for state in STATES}

    def as_dict(self) -> dict[str, Any]:
        plain = (
            "backend",
            "ok",
            "seed",
            "size",
            "few_shapes",
            "hunt",
            "planned",
            "stopped",
            "counts",
            "states",
            "facts",
            "complaints",
        )
        outcomes = {"failures": self.failures, "known_failures": self.known, "slowest": self.slowest}
        return {
            "suite": SUITE_VERSION,
            **{key: getattr(self, key) for key in plain},
            "opening": self.opening.as_dict(),
            "profiles": list(self.profiles),
            "seconds": round(self.seconds, 2),
            "graphs": len(self.graphs),
            "against": {"backend": self.against, **self.witnessed} if self.witnessed else None,
            "like": self.like.as_dict() if self.like is not None else None,
            "refusals": {
                "share": round(self.refused_share, 4),
                "calls": [{**each._asdict(), "calls": count} for each, count in self.refusals.most_common()],
            },
            "tightness": {
                "/".join(key): {check: round(share, 4) for check, share in row.items()}
                for key, row in self.tightness.items()
            },
            "speeds": [asdict(speed) for speed in self.speeds],
            "cells": [cell.as_dict() for cell in self.worst_first],
            **{key: [outcome.as_dict() for outcome in part] for key, part in outcomes.items()},
        }


def as_json(report: Report) -> str:
    return json.dumps(report.as_dict(), indent=1) + "\n"
