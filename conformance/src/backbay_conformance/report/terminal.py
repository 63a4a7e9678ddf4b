"""A report on a terminal: a bar while it runs, then tables."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import Any, Self, TextIO

from backbay.cli import printable

from ..numbers.comparison import ENOUGH, TIGHT
from .report import STATES, Outcome, Report, TableCell

COLOURS = {"full": "32", "composite": "36", "unsupported": "90", "failing": "31", "over-claimed": "31"}
COLOURS |= {"under-claimed": "33", "partial": "36"}
MOST_REASONS = 12
LETTERS: dict[str, str] = dict(zip(STATES, ("ok", "co", "pa", "-", "XX", "OO", "UU"), strict=True))


EVERY = 10.0  # seconds between two lines of progress where there is no terminal
SOON = 5.0  # seconds after which the time that is left can be told


CLEAR = "\r" + " " * 110 + "\r"


class ProgressBar:
    """The progress of a run: a line that is overwritten, or, without a terminal, a line every ten seconds.

    The first failure of each kind is told at once, in a line of its own.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._done, self._failed = stream, 0, 0
        self._total, self._latest = 0, ""
        self._kinds: set[tuple[str, str, str]] = set()
        self._visible = stream.isatty()
        self._started = time.monotonic()
        self._shown = 0.0 if self._visible else self._started

    def __enter__(self) -> Self:
        return self

    def step(self, outcome: Outcome, total: int) -> None:
        self._done += 1
        self._failed += outcome.failed
        self._total, self._latest = total, outcome.item
        if outcome.failed and _kind(outcome) not in self._kinds:
            self._kinds.add(_kind(outcome))
            line = f"FAILED {outcome.item} ({outcome.check}) {outcome.call}: {_first_line(outcome)}"
            self._stream.write(f"{CLEAR if self._visible else ''}{printable(line)}\n")
            self._stream.flush()
        if self._visible and (time.monotonic() - self._shown > 0.1 or self._done == total):
            filled = 30 * self._done // max(1, total)
            bar = "█" * filled + "░" * (30 - filled)
            self._show(f"\r{bar} {self._told()}  {outcome.item[:32]:<32}")
        self.tick()

    def tick(self) -> None:
        """Write a line if the last is old; called while a call runs, too."""
        if not self._visible and time.monotonic() - self._shown >= EVERY:
            self._show(f"{self._told()}{f', latest {self._latest}' if self._done else ''}\n")

    def _told(self) -> str:
        seconds = time.monotonic() - self._started
        if not self._done:
            return f"starting the backend, {seconds:.0f} s"
        failed = f", {self._failed} failed" if self._failed else ""
        left = seconds * (self._total - self._done) / self._done if seconds > SOON else 0.0
        more = f", about {left:.0f} s left" if left else ""
        return f"{self._done}/{self._total}{failed} {seconds:.0f} s{more}"

    def _show(self, text: str) -> None:
        self._shown = time.monotonic()
        self._stream.write(text)
        self._stream.flush()

    def __exit__(self, *error: object) -> None:
        if self._visible:
            self._stream.write(CLEAR)


def show(
    report: Report, stream: TextIO, *, traces: bool = False, way: str = "--failures FOLDER writes"
) -> None:
    """The matrix of ops and dtypes, the failures, and the counts; with the tracebacks of failures, if asked for.

    `way` says what writes the failures that are not shown.
    """
    colour = stream.isatty()
    stream.writelines(line + "\n" for line in matrix(report, colour=colour))
    stream.writelines(f"- {line}\n" for line in reasons(report.cells.values()))
    stream.writelines(f"{line}\n" for line in (*refusals(report), *worst_elements(report)))
    more = len(report.failures) - show_failures(report.failures, stream, traces=traces)
    if more:
        stream.write(f"\nand {more} more like these; {way} them all\n")
    lines = [f"! {line}" for line in (*report.complaints, report.ending) if line]
    lines += [*witnessed(report), *tightness(report), *([] if report.like is None else [str(report.like)])]
    if precisions := declarations(report.cells.values()):
        lines.append(f"declared precision, of activations and of sums: {precisions}")
    lines += [f"avoided: {line}" for line in by_reason(report.facts.get("avoidances", {}).items())]
    if any(not cell.dtype for cell in report.cells.values()):  # a scenario ran: this is more than a few ops
        lines += _extent(report.facts)
    counts = report.counts
    refused = f" ({report.refusals.total()} refused)" if report.refusals else ""
    told = ", ".join(f"{n} {state}" for state, n in report.states.items() if n)
    lines.append(
        f"{report.title}: {counts['passed']} passed, {counts['failed']} failed, {counts['known']} known failures, "
        f"{counts['unsupported']} unsupported calls{refused}; ops x dtypes: {told}"
    )
    lines.append(f"{report.verdict} (seed {report.seed}, {report.extent}, {report.seconds:.1f} s)")
    stream.writelines(f"{line}\n" for line in lines)


def _extent(facts: dict[str, Any]) -> list[str]:
    """Whose scenarios ran, and what the backend's kernels suffice for."""
    others = facts.get("scenarios")
    lines = [f"scenarios of other packages ran, too: {', '.join(others)}"] if others else []
    return lines + ([f"kernels: {facts['kernels']}; a Llama {facts['llama']}"] if "llama" in facts else [])


def worst_elements(report: Report) -> list[str]:
    """The worst elements of a hunt, by their bounds and in last places; one line if they are the same."""
    lines = [f"{'worst elements':<40} last places  of its bound"] if report.hunt else []
    for cell in report.worst_first:
        name = f"{cell.profile} {cell.name} {cell.dtype}"
        for worst in dict.fromkeys(cell.extremes.values()):
            lines.append(f"{name:<40} {worst.last_places:11.4g} {worst.share:12.2%}  {worst.element}")
            name = ""
    return lines


def reasons(cells: Iterable[TableCell]) -> list[str]:
    """Unsupported ops by reason; long lists are shortened."""
    lines = by_reason(
        (f"{cell.name} {cell.dtype}".rstrip(), cell.why_not) for cell in cells if cell.unsupported
    )
    more = [f"and {len(lines) - MOST_REASONS} more reasons"] if len(lines) > MOST_REASONS else []
    return [*lines[:MOST_REASONS], *more]


def by_reason(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Names with the reason that they share, the most common reason first."""
    found: dict[str, list[str]] = {}
    for name, why in pairs:
        found.setdefault(why, []).append(name)
    return [f"{_some(names)}: {why}" for why, names in sorted(found.items(), key=lambda pair: -len(pair[1]))]


def refusals(report: Report) -> list[str]:
    """The share of refused calls, and the most common of them."""
    if not report.refusals:
        return []
    told = (
        f"{report.refusals.total()} calls refused when they were compiled, {report.refused_share:.1%} of all"
    )
    shown = [
        f"  {count} {each.kind or each.name}: {each.reason.partition(chr(10))[0]}"
        for each, count in report.refusals.most_common(MOST_REASONS)
    ]
    more = len(report.refusals) - len(shown)
    return [told, *shown, *([f"  and {more} more kinds"] if more else [])]


def witnessed(report: Report) -> list[str]:
    """The calls that the witness computed, too, and for each op and dtype the first in which it alone is wrong."""
    if not (counts := report.witnessed):
        return []
    cells = [cell for cell in report.cells.values() if cell.differing]
    told = f"{counts['compared']} calls against {report.against}: {counts['differing']} differ"
    shown = [f"  {report.against} is wrong, {report.backend} is not: {cell.difference}" for cell in cells]
    return [told, *shown[:MOST_REASONS]]


def tightness(report: Report) -> list[str]:
    """The share of elements with a tight bound: a line, and a line for each check that judges too few."""
    shares = [share for row in report.tightness.values() for share in row.values()]
    if not shares:
        return []
    loose = report.loose
    told = (
        f"tight bounds (below {TIGHT:.0%} of the value's scale): at least {ENOUGH:.0%} of the elements in "
        f"{len(shares) - len(loose)} of {len(shares)} checks of cases and scenarios, {min(shares):.0%} in the loosest"
    )
    shown = [f"  {share:4.0%} {name}" for share, name in loose[:MOST_REASONS]]
    return [told, *shown, *([f"  and {len(loose) - MOST_REASONS} more"] if len(loose) > MOST_REASONS else [])]


def declarations(cells: Iterable[TableCell]) -> str:
    """The number of ops for each declared precision; few ops are named."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        for precision in cell.precisions if cell.passed else ():
            found.setdefault(precision, set()).add(cell.name)
    return "; ".join(f"{precision} of {_some(sorted(names))}" for precision, names in sorted(found.items()))


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def matrix(report: Report, *, colour: bool) -> list[str]:
    """The states of ops and dtypes, and of scenarios; ops without any kernel share a line."""
    dtypes = columns(report.cells.values())
    widths = [max(5, len(dtype)) for dtype in dtypes]
    head = " ".join(f"{d:>{w}}" for d, w in zip(dtypes, widths, strict=True))
    lines = [f"{'':<40} {head}"] if dtypes else []
    lacking: list[str] = []
    for (profile, name), row in rows(report.cells.values()).items():
        if {cell.state for cell in row.values()} == {"unsupported"}:
            lacking.append(name)
            continue
        cells = " ".join(_mark(row.get(d), w, colour) for d, w in zip(dtypes, widths, strict=True))
        if "" in row:
            cells = "ok" if row[""].state == "full" else row[""].state
        lines.append(f"{profile + ' ' + name:<40} {cells}".rstrip())
    if lacking:
        text = f"unsupported: {', '.join(dict.fromkeys(lacking))}"
        lines += textwrap.wrap(text, 110, subsequent_indent="  ", break_on_hyphens=False)
    key = "ok: its kernel, co: composite of core, pa: in part, - unsupported, XX failing, OO over-claimed, UU under-claimed, . not drawn"
    key += f", * {report.against} is wrong" if report.witnessed.get("differing") else ""
    return [*lines, key] if dtypes else lines


def columns(cells: Iterable[TableCell]) -> list[str]:
    found = {cell.dtype for cell in cells if cell.dtype}
    plain = [dtype for dtype in ("f32", "f16", "bf16", "i32", "i64") if dtype in found]
    return plain + sorted(found - set(plain))


def rows(cells: Iterable[TableCell]) -> dict[tuple[str, str], dict[str, TableCell]]:
    """The cells of each case or scenario by dtype, those that fail first."""
    found: dict[tuple[str, str], dict[str, TableCell]] = {}
    for cell in cells:
        found.setdefault((cell.profile, cell.name), {})[cell.dtype] = cell
    return dict(
        sorted(found.items(), key=lambda row: (not any(cell.bad for cell in row[1].values()), row[0]))
    )


def _mark(cell: TableCell | None, width: int, colour: bool) -> str:
    if cell is None:
        return f"{'.':>{width}}"
    mark = f"{'*' if cell.differing and not cell.bad else LETTERS[cell.state]:>{width}}"
    return f"\x1b[{COLOURS[cell.state]}m{mark}\x1b[0m" if colour else mark


def first_of_kind(failures: Iterable[Outcome]) -> list[Outcome]:
    """The smallest failure for each case and check."""
    kinds: dict[tuple[str, str, str], Outcome] = {}
    for outcome in failures:
        kind = _kind(outcome)
        if kind not in kinds or (outcome.script and not kinds[kind].script):
            kinds[kind] = outcome
    return list(kinds.values())


def show_failures(failures: Sequence[Outcome], stream: TextIO, *, traces: bool = False) -> int:
    """Show the first failure of each kind, and the first lines of a scenario's other messages; returns their number."""
    shown = 0
    for first in first_of_kind(failures):
        show_failure(first, stream, traces=traces)
        others = {_first_line(o): o.item for o in failures if not o.dtype and _kind(o) == _kind(first)}
        others.pop(_first_line(first), None)
        told = list(others.items())[:MOST_REASONS]
        stream.writelines(f"  also {item}: {line}\n" for line, item in told)
        shown += 1 + len(told)
    return shown


def _kind(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.profile, outcome.name, outcome.check


def _first_line(outcome: Outcome) -> str:
    return outcome.message.partition("\n")[0]


def show_failure(outcome: Outcome, stream: TextIO = sys.stdout, *, traces: bool = False) -> None:
    stream.write(f"\nFAILED {outcome.item} ({outcome.check}) {outcome.call}\n  {outcome.message}\n")
    if traces:
        stream.write("".join(f"    {line}\n" for line in outcome.trace.splitlines()))
    if outcome.script and not outcome.packed:
        stream.write(f"\n{outcome.script}")
    elif outcome.script:
        stream.write("    --failures FOLDER writes a program with all its data\n")
