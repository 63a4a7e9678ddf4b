"""A hunt for the worst inputs of an op in one dtype: Hypothesis drives calls towards the largest errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from ...draw.choices import Source, seeded
from ...draw.draw import HUNT, LISTED_FROM, ROUND, Draw
from ...draw.hypothesis_search import find_worst
from ...numbers.comparison import Extremes, keep_worse
from ...report.report import Outcome
from ...suite.case import CASES
from ..selection import HuntBudget, Item, SelectionError
from .group_run import GroupRunner
from .item_run import run_item

TURNS = range(1, 5 * ROUND)
"""The turns whose calls a hunt drives: at least one for each dtype, and for each option that comes by turn."""
IDLE = 20
"""After so many calls without an error to be measured, a hunt ends."""


def hunt_items(keys: Iterable[tuple[str, str]]) -> list[Item]:
    """An item for each op and dtype whose results have bounds."""
    found = [Item(*key, turns[0]) for key in keys if key in CASES for turns in turns_by_dtype(*key).values()]
    if not found:
        raise SelectionError("--hunt: no selected op has a result with an error bound")
    return found


@cache
def turns_by_dtype(profile: str, name: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for turn in TURNS:
        if turn % HUNT == 1 and (turn + turn // ROUND) % ROUND < LISTED_FROM:  # listed shapes are large
            call = CASES[profile, name].draw(Draw(seeded(f"{turn}"), turn))
            if not call.raw and call.verify is None:
                found.setdefault(call.dtype, []).append(turn)
    return found


def run_group(run: GroupRunner, items: Sequence[Item]) -> None:
    """Run the items of a group, or hunt with each of them."""
    if run.settings.hunt is None:
        run.run(items)
    else:
        for item in items:
            hunt(run, item, run.settings.hunt)


def hunt(run: GroupRunner, item: Item, budget: HuntBudget) -> None:
    """Hunt in the calls of an op and dtype until one fails; the outcome has the worst elements."""
    turns = next(turns for turns in turns_by_dtype(item.profile, item.name).values() if item.turn in turns)
    extremes: Extremes = {}
    latest, tried, seconds, best = item, 0, 0.0, Outcome(str(item))

    def announce(outcome: Outcome) -> None:
        outcome.extremes = extremes
        if run.announce is not None:
            run.announce(outcome)

    def example(source: Source) -> dict[str, float] | None:
        nonlocal latest, tried, seconds, best
        latest, tried = replace(item, turn=turns[source(len(turns), None)]), tried + 1
        outcome = run_item(run.lab, latest, hunting(source), announce)
        seconds += outcome.seconds
        if outcome.failed or tried == 1 or outcome.status == "passed":
            best = outcome
        keep_worse(extremes, outcome.extremes)
        if outcome.failed or (tried == IDLE and not extremes):
            return None
        return {measure: getattr(worst, measure) for measure, worst in outcome.extremes.items()}

    find_worst(example, budget.calls, item.seed(run.settings.seed), budget.seconds)
    if best.failed:
        whole = replace(run, done=lambda outcome: run.done(replace(outcome, extremes=extremes)))
        whole.run_again(latest, best.choices)
    else:
        run.done(replace(best, item=str(item), extremes=extremes, seconds=seconds))


def hunting(source: Source) -> Source:
    """The choices of a call in the mode of a hunt, which is the first of them; others come by turn, as in a run."""
    modes = iter([HUNT])

    def chosen(n: int, by_turn: int | None) -> int:
        mode = next(modes, None)
        if mode is not None:
            return mode
        return source(n, None) if by_turn is None else by_turn

    return chosen
