"""The plan of a run: items by profile, case or scenario, and turn."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import count, groupby

from backbay import BackbayError

from .. import cases, scenarios
from ..suite.case import CASES
from ..suite.extensions import load_extensions
from ..suite.lab import PLAIN, SCENARIOS, OpenSettings
from ..suite.profiles import FIRST_ROUND, PROFILES, STANDARD
from ..workloads.model_calls import LIKE

CALLS_BY_SIZE = {"tiny": 1, "smoke": FIRST_ROUND, "default": 90, "nightly": 900}
"""The number of calls of a case by size."""
FEW = 12  # names that an error lists
RUN_SIZES = tuple(CALLS_BY_SIZE)
DECLARING = (cases, scenarios)  # their import fills CASES and SCENARIOS


SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
UNLIMITED = 10**9
AGAIN = -1
"""The turn of a call that failed in the last run."""


class SelectionError(BackbayError, ValueError):
    """A name that the suite does not know, or a selection that leaves nothing to run."""


@dataclass(frozen=True)
class Item:
    """One drawn call of a case, or one run of a scenario, by its number."""

    profile: str
    name: str
    turn: int
    structure: int | None = None  # of a run of few shapes: the turn with its shapes, layouts and attributes

    def __str__(self) -> str:
        return f"{self.group}/{'again' if self.turn == AGAIN else self.turn}"

    @property
    def group(self) -> str:
        return f"{self.profile}/{self.name}"

    def seed(self, seed: int) -> str:
        """The seed of the search that begins with this item."""
        return f"{seed}/{self}"


@dataclass(frozen=True)
class HuntBudget:
    """The seconds, or the calls, that a hunt may take for each op and dtype."""

    seconds: float
    calls: int

    def shared(self, items: int, jobs: int) -> HuntBudget:
        """The share of each item in a run of so many jobs at once."""
        return replace(self, seconds=self.seconds * min(jobs, items) / items)


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run: the backend, how it is opened, the seed, and what each worker must know."""

    backend: str
    seed: int
    timeout: float = 60.0
    shrink: float = 4.0  # seconds for shrinking the first failure of a kind
    keeps: bool = False  # failing calls for the next run, which tries them first
    opening: OpenSettings = PLAIN
    like: str = ""  # the model whose calls are tried
    against: str = ""  # the witness
    few_shapes: bool = False
    hunt: HuntBudget | None = None  # for each op and dtype, in place of the usual calls


def effort_of(text: str) -> HuntBudget:
    """The budget that a text asks for: `90s`, `10m` and `1h` for the whole hunt, or `500x` calls of each op and dtype."""
    found = re.fullmatch(r"(\d+)([smhx])", text)
    if found is None or not int(found[1]):
        raise SelectionError(f"a hunt takes a time, as 90s, 10m or 1h, or calls, as 500x, not {text!r}")
    number, unit = int(found[1]), found[2]
    return HuntBudget(float("inf"), number) if unit == "x" else HuntBudget(number * SECONDS[unit], UNLIMITED)


def names(profiles: Iterable[str] = PROFILES) -> list[tuple[str, str]]:
    """Every case and scenario of some profiles, as (profile, name)."""
    load_extensions()
    wanted = set(profiles)
    return [key for key in (*CASES, *SCENARIOS) if key[0] in wanted]


def select(
    profiles: Sequence[str] | None = None, ops: Sequence[str] | None = None, expression: str | None = None
) -> list[tuple[str, str]]:
    """The selected cases and scenarios; SelectionError for an unknown name, or if nothing is selected."""
    chosen = tuple(profiles) if profiles else STANDARD
    if LIKE in chosen:
        raise SelectionError(f"profile {LIKE} needs a model: give --like MODEL")
    for profile in chosen:
        _known(profile, PROFILES, "profile")
    found = names(chosen)
    if ops:
        for op in ops:
            _known(op, sorted({name for _, name in names()}), "op or scenario")
        found = [key for key in found if key[1] in ops]
    if expression:
        found = [key for key in found if matches(expression, "/".join(key))]
    if not found:
        parts = [f" with ops {', '.join(ops)}"] if ops else []
        parts += [f" with -k {expression!r}"] if expression else []
        raise SelectionError(f"nothing is selected by profiles {', '.join(chosen)}{''.join(parts)}")
    return found


def items(keys: Sequence[tuple[str, str]], size: str) -> list[Item]:
    """The items of a run in rounds: a few of each case and scenario, then more, so that faults show early.

    A case's first round combines each mode with each float type; later rounds grow, since switching has a cost.
    """
    _known(size, RUN_SIZES, "size")
    counts = sorted(((times(*key, size), key) for key in keys), reverse=True, key=lambda pair: pair[0])
    planned: list[Item] = []
    low = 0
    for high in _ends_of_rounds():
        if all(most <= low for most, _ in counts):
            break
        for most, key in counts:
            planned += [Item(*key, turn) for turn in range(low, min(high, most))]
        low = high
    return planned


def in_rounds(planned: Iterable[Item]) -> Iterator[list[Item]]:
    """The items of each case or scenario and round, which one search draws: the same whatever else is selected."""
    for _, found in groupby(planned, key=lambda item: (item.group, _round_of(item.turn))):
        yield list(found)


def _round_of(turn: int) -> int:
    return next(n for n, end in enumerate(_ends_of_rounds()) if turn < end)


def _ends_of_rounds() -> Iterator[int]:
    """The turns before which the rounds end."""
    return (FIRST_ROUND * 4**n for n in count())


def first_round(key: tuple[str, str], size: str) -> list[Item]:
    """The first items of a case or scenario in a run of this size."""
    return [Item(*key, turn) for turn in range(min(FIRST_ROUND, times(*key, size)))]


def like_items(
    calls: Mapping[str, int], ops: Sequence[str] | None = None, expression: str | None = None
) -> list[Item]:
    wanted = [op for op in calls if not ops or op in ops]
    wanted = [op for op in wanted if not expression or matches(expression, f"{LIKE}/{op}")]
    return [Item(LIKE, op, turn) for op in wanted for turn in range(calls[op])]


def times(profile: str, name: str, size: str) -> int:
    if (profile, name) in CASES:
        weight = 1.0 if size == "tiny" else CASES[profile, name].weight
        return max(1, round(CALLS_BY_SIZE[size] * weight))
    return SCENARIOS[profile, name].times[size]


def matches(expression: str, text: str) -> bool:
    """Whether `a and not b or (c)` holds, each word standing for "occurs in the text"."""
    words = re.findall(r"[^\s()]+|[()]", expression)
    keywords = {"and", "or", "not", "(", ")"}
    code = [word if word in keywords else f"w{i}" for i, word in enumerate(words)]  # valid Python names
    try:
        tree = ast.parse(" ".join(code), mode="eval")
    except SyntaxError:
        raise SelectionError(f"-k must be names joined by and, or, not; got {expression!r}") from None
    return _holds(tree.body, [word in text for word in words])


def _holds(node: ast.expr, found: Sequence[bool]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_holds(part, found) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_holds(part, found) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=part):
            return not _holds(part, found)
        case ast.Name(id=name):
            return found[int(name[1:])]
    raise SelectionError("-k must be names joined by and, or, not")


def _known(name: str, known: Sequence[str], what: str) -> None:
    if name not in known:
        nearest = get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        listed = f"known: {', '.join(known)}" if len(known) <= FEW else "`backbay ops` lists the ops"
        raise SelectionError(f"no {what} {name!r}{hint}; {listed}")
