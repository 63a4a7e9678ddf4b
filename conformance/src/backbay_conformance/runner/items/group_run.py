"""Running the items of one case or scenario: Hypothesis draws each, and makes the first failure of a kind small."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from backbay.plugin import CachedValue

from ...draw.choices import Source, following
from ...draw.hypothesis_search import find_failure
from ...report.report import Outcome
from ...suite.lab import Lab
from ...suite.profiles import SUITE_VERSION
from ..selection import AGAIN, Item, RunSettings
from .item_run import BRIEFLY, Announce, explain_failure, run_item, shown

Kinds = set[tuple[str, str]]
"""Cases or scenarios with a check that failed, and was made small."""
Done = Callable[[Outcome], None]
FAILURES = "failures"  # of the suite, as a kind of values in the cache folder


@dataclass
class GroupRunner:
    """Runs items of one group, in order; `done` is called with each outcome."""

    lab: Lab
    settings: RunSettings
    small: Kinds
    done: Done
    announce: Announce | None = None
    shrinking: Done = lambda outcome: None

    def run(self, items: Sequence[Item]) -> None:
        left = deque(items)
        kept = self._kept(items[0]) if items[0].turn == 0 else None
        while left:
            self._search(left, kept)
            kept = None

    def run_again(self, item: Item, choices: Sequence[int]) -> None:
        """Run an item that has failed with these choices, to make the failure small, and keep it for the next run."""
        self._search(deque([item]), self._kept(item), choices)

    def _kept(self, item: Item) -> CachedValue | None:
        """What failed in the last run of this group with this backend, opened alike."""
        if not self.settings.keeps:
            return None
        name, opened = self.settings.backend, self.settings.opening
        return CachedValue(FAILURES, f"{name} {item.group}", [SUITE_VERSION, name, item.group, opened])

    def _search(self, left: deque[Item], kept: CachedValue | None, choices: Sequence[int] = ()) -> None:
        """Run items until all have run, or one has failed in a new way: that is made small."""
        failed: Outcome | None = None
        best: Outcome | None = None
        item = left[0]

        def example(source: Source, new: bool) -> bool:
            nonlocal failed, best, item
            if failed is None:
                item = left.popleft() if new else replace(left[0], turn=AGAIN)
            if new and choices:
                source = following(source, choices)
            outcome = run_item(self.lab, item, source, self.announce if failed is None else None)
            if failed is None and outcome.failed and self._is_new(item, outcome):
                failed = best = outcome
                self.shrinking(outcome)
            elif failed is None:
                if new:
                    self._passed_or_known(item, outcome)
                return False
            elif not is_alike(outcome, failed):
                return False
            elif best is None or simplicity(outcome) < simplicity(best):
                best = outcome
            return True

        find_failure(
            example,
            len(left),
            item.seed(self.settings.seed),
            kept=kept,
            again=not choices,
            seconds=self.settings.shrink,
        )
        if failed is not None and best is not None:
            self.small.add((item.group, failed.check))
            best = shown(self.lab, item, best, self.settings.backend)
            best.seconds, best.again = failed.seconds, item.turn == AGAIN
            self.done(best)

    def _is_new(self, item: Item, outcome: Outcome) -> bool:
        return self.settings.shrink > 0 and (item.group, outcome.check) not in self.small

    def _passed_or_known(self, item: Item, outcome: Outcome) -> None:
        if outcome.failed:
            self.shrinking(outcome)
            outcome = explain_failure(self.lab, item, outcome, BRIEFLY)
        self.done(outcome)


def is_alike(outcome: Outcome, failed: Outcome) -> bool:
    """Whether an outcome is a failure of the same kind: the op still has to fail in the dtype in which it failed."""
    return outcome.failed and (outcome.check, outcome.dtype) == (failed.check, failed.dtype)


def simplicity(outcome: Outcome) -> tuple[int, list[int]]:
    return len(outcome.choices), outcome.choices
