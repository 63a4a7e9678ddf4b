"""Running one item: any error of the backend becomes an outcome."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from typing import Any

from backbay import BackbayError, DeclaredUnsupportedError, DType, GuardZoneError, Level, RefusalError
from backbay.internals import keep_large_blocks

from ...checks.call_check import CallVerdict, try_call
from ...checks.graph_judge import GraphJudge
from ...checks.judgement import cost_of, expect, judge
from ...checks.node_calls import kind_of, model_call
from ...checks.process_state import unchanged_process
from ...checks.relations import OTHER_CALLS, RELATIONS, SAME_GRAPH, try_relations
from ...checks.traced_call import TracedCall, make, told
from ...checks.witness import testimony, verdict
from ...draw.choices import Source, replayed, shaped
from ...draw.draw import MODES, Draw
from ...fault import Fault
from ...numbers.comparison import measured
from ...numbers.encoding import Array
from ...numbers.number import Number
from ...report.report import Outcome
from ...suite.case import CASES, Call
from ...suite.lab import SCENARIOS, Lab
from ...workloads.model_calls import LIKE
from ..replay import PACKED, record_data, script, take_data
from ..selection import Item

SHARED = {"abc", "backbay", "backbay_conformance", "builtins"}  # packages that no plugin owns


def origin(error: BaseException, kind: type[Any]) -> str:
    """The last place in the files of a backend's class that an error passed, as "engine.py:58, in view"; or ""."""
    owners = {base.__module__.partition(".")[0] for base in kind.__mro__} - SHARED
    places = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{line}, in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in owners
    ]
    return places[-1] if places else ""


OF_NO_OP = ("memory", "threads", "errors", "guards", "crash", "hang")
"""Checks of scenarios whose failures no single op explains."""
KEPT = 1 << 25
"""Bytes of blocks that are kept for the suite's next arrays: the system would clear each page of fresh memory."""
EXPLAINING, BRIEFLY = 4.0, 2.0
"""Seconds for judging the nodes of a failed scenario's graphs: of the first failure of a kind, and of later ones."""
Announce = Callable[[Outcome], None]


def run_item(
    lab: Lab, item: Item, source: Source, announce: Announce | None = None, recorded: Outcome | None = None
) -> Outcome:
    """Run an item with the choices of a source, and the data of a recorded failure, if given.

    `announce` is called before each call is tried.
    """
    outcome, started = Outcome(str(item)), time.perf_counter()
    kind: type[Any] = object
    draw = draw_of(item, source)
    keep_large_blocks(KEPT)  # opening a backend may have changed this
    try:
        draw.cache = lab.backend.cache_config()
        kind = type(lab.backend)
        with measured() as outcome.tight, unchanged_process():
            if is_call(item):
                _run_case(lab, item, draw, outcome, announce, recorded)
            else:
                _run_scenario(lab, item, draw, outcome, announce)
    except RefusalError as refusal:
        outcome.status, outcome.refused = "unsupported", True
        outcome.message = refusal.reason if is_call(item) else str(refusal)
    except Exception as error:  # noqa: BLE001 an error of the backend is a result
        _fail(outcome, error, kind)
        if lab.witness is not None and isinstance(error, Fault) and error.judged is not None:
            outcome.message += verdict(lab.witness, error.judged)
        lab.discard()
    outcome.seconds, outcome.graphs = time.perf_counter() - started, lab.take_new_graphs()
    outcome.choices = draw.choices if outcome.failed else []
    return outcome


def draw_of(item: Item, source: Source) -> Draw:
    """The draw of an item, which takes its shapes from its structure, if it has one."""
    if item.structure is None:
        return Draw(source, item.turn)
    mode = (item.turn if is_call(item) else item.structure) % len(MODES)
    return Draw(shaped(source, f"{item.group}/{item.structure}", mode), item.structure)


def is_call(item: Item) -> bool:
    """Whether the item is a single call, and no scenario."""
    return item.profile == LIKE or (item.profile, item.name) in CASES


def drawn_call(lab: Lab, item: Item, draw: Draw) -> Call:
    """The call of a case, or of the model that the run imitates."""
    if item.profile != LIKE:
        return CASES[item.profile, item.name].draw(draw)
    calls = lab.model_calls.get(item.name, [])
    if item.turn >= len(calls):
        raise BackbayError(
            f"the model has {len(calls)} calls of {item.name}, not {item.turn + 1}; give --like"
        )
    draw.mode = "wide"
    return model_call(lab, calls[item.turn], draw)


def _run_case(
    lab: Lab,
    item: Item,
    draw: Draw,
    outcome: Outcome,
    announce: Announce | None,
    recorded: Outcome | None,
) -> None:
    call = drawn_call(lab, item, draw)
    outcome.dtype, outcome.mode, outcome.call = call.dtype, draw.mode, str(call)
    outcome.elements = sum(prod(operand.shape) for operand in call.operands())
    if announce is not None:
        outcome.choices = draw.choices
        announce(outcome)
    if recorded is not None and (why := take_data(call, recorded)):
        outcome.call += f" with other operands: {why}"
        return
    try:
        observed = try_call(lab, call, draw.mode)
        _describe(outcome, observed)
        if observed.level is Level.NONE:
            outcome.status, outcome.message = "unsupported", observed.why_not
        else:
            if draw.mode == "hunt":
                outcome.extremes = observed.extremes
                return
            if lab.witness is not None and (own := testimony(lab.witness, call)) is not None:
                observed.note("against")
                outcome.difference = own.fault
            names = RELATIONS if item.structure is None else SAME_GRAPH
            try_relations(lab, call, draw, observed, names)
            _describe(outcome, observed)
            if observed.why_not:
                _note_refusal(outcome, call)
                outcome.message = observed.why_not
    except RefusalError:
        _note_refusal(outcome, call)
        raise
    except Exception:
        record_data(call, outcome)
        raise


def _note_refusal(outcome: Outcome, call: Call) -> None:
    specs = call.mapped(lambda operand: operand.spec)
    outcome.refused, outcome.kind = True, kind_of(call.op, [specs[i] for i in call.op.operands])


def _run_scenario(lab: Lab, item: Item, draw: Draw, outcome: Outcome, announce: Announce | None) -> None:
    def note(text: str) -> None:
        outcome.call, outcome.choices = text, draw.choices
        if announce is not None:
            announce(outcome)

    draw.note = note
    try:
        SCENARIOS[item.profile, item.name].function(lab, draw)
    except DeclaredUnsupportedError as error:
        outcome.status, outcome.message = "unsupported", str(error)


def explain_failure(lab: Lab, item: Item, failed: Outcome, seconds: float = EXPLAINING) -> Outcome:
    """The failure of a scenario, or of a call whose operands other ops have made, with the ops that are wrong by
    themselves: it runs again, and is watched.
    """
    if failed.check in OF_NO_OP or (is_call(item) and not _has_made_operands(lab, item, failed)):
        return failed
    judge = GraphJudge(lab.through(lambda backend: backend), seconds)
    watched = lab.through(judge.backend)
    verdict = judge.verdict() if run_item(watched, item, replayed(failed.choices)).failed else ""
    for opened in (watched, judge.lab):
        with suppress(Exception):  # the verdict is known
            opened.discard()
    return replace(failed, message=f"{failed.message}\n  {verdict}") if verdict else failed


def drawn_from(lab: Lab, item: Item, outcome: Outcome) -> Draw:
    return Draw(replayed(outcome.choices), item.turn, lab.backend.cache_config())


def _has_made_operands(lab: Lab, item: Item, failed: Outcome) -> bool:
    """Whether the call reads results of other ops, such as a copy, so that one of these may be wrong instead."""
    draw = drawn_from(lab, item, failed)
    operands = drawn_call(lab, item, draw).operands()
    return any(step.makes for operand in operands for step in operand.layout.steps)


def _describe(outcome: Outcome, observed: CallVerdict) -> None:
    outcome.level, outcome.ratio, outcome.checks = observed.level.value, observed.ratio, observed.checks
    outcome.kind = observed.kind
    if observed.precision is not None:
        outcome.precision = told(observed.precision)


def _fail(outcome: Outcome, error: Exception, kind: type[Any]) -> None:
    outcome.status, cause = "failed", error.__cause__ if isinstance(error, Fault) else error
    place = origin(cause, kind) if cause is not None else ""
    if cause is not None:
        outcome.trace = "".join(traceback.format_exception(cause))
    if isinstance(error, Fault):
        first, newline, others = error.message.partition("\n")
        outcome.check = error.check
        outcome.message = f"{first} ({place}){newline}{others}" if place else error.message
        return
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = place or f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
    outcome.check = "guards" if isinstance(error, GuardZoneError) else "raised"
    outcome.message = f"{type(error).__name__}: {error} ({place})"


def shown(lab: Lab, item: Item, failed: Outcome, backend: str) -> Outcome:
    """The failure explained, with a program that reproduces it."""
    best = explain_failure(lab, item, failed)
    with suppress(Exception):  # the replay file is enough
        describe(lab, item, best, backend)
        if best.script and right_alone(lab, item, best):
            told = f"the fault is in the check {_described(best.check)}"
            best.message += f"\n  the program alone is right: {told}"
    return best


def describe(lab: Lab, item: Item, outcome: Outcome, backend: str) -> None:
    """Add to a failed call its data, and a program that reproduces it; nothing runs."""
    if not is_call(item):
        return
    call, expected, *_ = drawn_again(lab, item, outcome)
    if outcome.check not in OTHER_CALLS:
        record_data(call, outcome)
    first = expected[0] if expected else None
    shown = first.value if isinstance(first, Number) else first
    outcome.script = script(call, backend, lab.backend, shown)
    outcome.packed = PACKED in outcome.script


def right_alone(lab: Lab, item: Item, outcome: Outcome) -> bool:
    """Whether the failed call gives the right result as its program runs it: once, and read directly."""
    try:
        with _traced_again(lab, item, outcome) as (draw, call, traced):
            traced.leave_out_copies()
            traced.write()
            judge(call, traced, traced.run(), cost_of(call, traced.level, traced.precision), draw.mode)
    except Exception:  # noqa: BLE001 the program shows the fault
        return False
    return True


def _described(check: str) -> str:
    if check in RELATIONS:
        return f"{check!r}: {str(RELATIONS[check].__doc__).rstrip('.')}"
    return f"{check!r}; the suite also runs a call twice, and reads views through `contiguous`"


@contextmanager
def _traced_again(lab: Lab, item: Item, outcome: Outcome) -> Iterator[tuple[Draw, Call, TracedCall]]:
    """The drawn call, or the one that the failed check judged in its place, with its data."""
    draw = drawn_from(lab, item, outcome)
    call = drawn_call(lab, item, draw)
    take_data(call, outcome)
    with TracedCall(lab.backend, call) as traced:
        make(call, draw.mode, traced.precision, outcome.variant)
        if outcome.check not in OTHER_CALLS:
            yield draw, call, traced
            return
    other = OTHER_CALLS[outcome.check](call)
    with TracedCall(lab.backend, other) as traced:
        yield draw, other, traced


def drawn_again(
    lab: Lab, item: Item, outcome: Outcome, *, runs: bool = False
) -> tuple[Call, list[Any], list[Array], list[DType]]:
    """The call that failed with its data, its expected and, if `runs`, actual results, and their dtypes.

    A crash or a hang is not run again.
    """
    with _traced_again(lab, item, outcome) as (_, call, traced):
        cost = cost_of(call, traced.level, traced.precision)
        got: list[Array] = []
        if runs and outcome.check not in ("crash", "hang"):
            with suppress(Exception):  # no actual results then
                traced.write()
                got = traced.run()
        expected = expect(call, cost) if call.formula is not None else []
        return call, expected, got, [result.dtype for result in traced.results]
