"""The calls that a run draws, drawn again without a backend: their dtypes and texts follow from seed and size."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

from backbay_conformance.checks.relations import RELATIONS, SAME_GRAPH
from backbay_conformance.draw.choices import Source
from backbay_conformance.draw.draw import Draw
from backbay_conformance.draw.hypothesis_search import find_failure
from backbay_conformance.report.digests import digest
from backbay_conformance.runner.items.few_shapes import with_few_shapes
from backbay_conformance.runner.items.item_run import draw_of, is_call
from backbay_conformance.runner.selection import Item, in_rounds, items, select
from backbay_conformance.suite.case import CASES, Call
from backbay_conformance.suite.profiles import FIRST_ROUND

CellKey = tuple[str, str, str]
"""Profile, name and dtype of a line of a certificate; a scenario's dtype is empty."""
KEPT = 1 << 11  # groups, whose calls are drawn once in a process


@dataclass(frozen=True)
class RunPlan:
    """What decides which calls a run draws, besides what the backend declines."""

    profiles: tuple[str, ...]
    size: str
    seed: int
    few_shapes: bool

    def items(self) -> list[Item]:
        usual = items(select(self.profiles), self.size)
        return with_few_shapes(usual, self.seed) if self.few_shapes else usual


@dataclass(frozen=True)
class Declined:
    """The dtypes in which a backend declines a case: always, or depending on the call. Their relations draw nothing.

    failing   whether a call of the case fails: the suite then begins another search
    """

    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    failing: bool = False


@dataclass(frozen=True)
class DrawnGroup:
    """The calls of one case, or of one scenario.

    dtypes   the number of calls by the dtype of the first operand
    digest   of the first calls, as a certificate has it; None if what the backend declined may change them
    certain  whether `dtypes` are those of every backend that declines the same
    """

    dtypes: Mapping[str, int]
    digest: str | None
    certain: bool

    @property
    def total(self) -> int:
        return sum(self.dtypes.values())


def drawn_groups(
    plan: RunPlan, declined: Mapping[str, Declined], only: Collection[str]
) -> dict[str, DrawnGroup]:
    """The calls of the cases and scenarios in `only`, as profile/name, in a run; `declined` is by the same names."""
    planned = sorted((item for item in plan.items() if item.group in only), key=lambda item: item.group)
    groups = {group: tuple(found) for group, found in groupby(planned, key=lambda item: item.group)}
    return {
        group: _drawn(found, plan.seed, plan.few_shapes, declined.get(group, Declined()))
        if is_call(found[0])
        else DrawnGroup({"": len(found)}, None, certain=True)
        for group, found in groups.items()
    }


@lru_cache(KEPT)
def _drawn(planned: tuple[Item, ...], seed: int, few_shapes: bool, declined: Declined) -> DrawnGroup:
    dtypes: Counter[str] = Counter()
    first: list[str] = []
    certain = first_are_certain = not declined.failing
    names = SAME_GRAPH if few_shapes else tuple(RELATIONS)
    for part in in_rounds(planned):
        seen = _Round(part, names, declined)
        seen.search(seed)
        dtypes.update(seen.dtypes)
        certain &= seen.certain
        if part[0].turn < FIRST_ROUND:
            first += [text for turn, text in seen.texts if turn < FIRST_ROUND]
            first_are_certain &= seen.certain
    return DrawnGroup(dict(dtypes), digest(first) if first_are_certain else None, certain)


class _Round:
    """A search without failures, as a run makes it for some items of one case."""

    def __init__(self, planned: Sequence[Item], names: Collection[str], declined: Declined) -> None:
        self._left, self._names, self._declined = deque(planned), names, declined
        self.dtypes: Counter[str] = Counter()
        self.texts: list[tuple[int, str]] = []
        self.certain = True

    def search(self, seed: int) -> None:
        find_failure(self._example, len(self._left), self._left[0].seed(seed), seconds=0)

    def _example(self, source: Source, new: bool) -> bool:
        item = self._left.popleft()
        draw = draw_of(item, source)
        call = CASES[item.profile, item.name].draw(draw)
        self.dtypes[call.dtype] += 1
        self.texts.append((item.turn, str(call)))
        if call.dtype not in self._declined.always:
            ways = list(_choices_of_relations(call, draw, self._names))
            self.certain &= not (ways and call.dtype in self._declined.sometimes)
            for n in ways:
                draw.below(n)
        return False


def _choices_of_relations(call: Call, draw: Draw, names: Collection[str]) -> Iterator[int]:
    """The number of options of each choice that `try_relations` makes for a call that the backend supports."""
    if "parts" in names and (extent := _batch(call)) > 1:
        yield extent - 1
    doubled = zip(call.operands(), call.doubled or (), strict=False)
    if draw.mode != "special" and any(yes and operand.dtype.is_float for operand, yes in doubled):
        yield 3


def _batch(call: Call) -> int:
    """The extent along which a call splits into independent ones; 0 if it does not."""
    pairs = zip(call.operands(), call.batch or (), strict=False)
    extents = {operand.shape[dim] for operand, dim in pairs if dim is not None and dim < len(operand.shape)}
    return extents.pop() if len(extents) == 1 else 0


def declined_by(lines: Sequence[Mapping[str, Any]]) -> dict[str, Declined]:
    """What a backend declines, by profile/name, as far as the lines of its certificate tell."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        groups.setdefault(f"{line['profile']}/{line['name']}", []).append(line)
    return {
        group: Declined(
            frozenset(line["dtype"] for line in own if _is_declined(line)),
            frozenset(line["dtype"] for line in own if not _is_declined(line) and _is_unclear(line)),
            any(line.get("failed", 0) for line in own),
        )
        for group, own in groups.items()
    }


def _is_declined(line: Mapping[str, Any]) -> bool:
    return not line["passed"] and not line.get("refused", 0) and not line.get("failed", 0)


def _is_unclear(line: Mapping[str, Any]) -> bool:
    """Whether some calls draw no relations, or fewer: refused ones, and, with a narrow accumulator, those of `scaling`."""
    narrow = any(each.partition(" ")[0].endswith(("/f16", "/bf16")) for each in line["precisions"])
    return bool(line["unsupported"] or line.get("refused", 0) or narrow)
