"""Running the items of one case or scenario: Hypothesis draws each, and makes the first failure of a kind small."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..draw.choices import Source
from ..report.report import Outcome
from ..suite.lab import Lab
from ..suite.profiles import SUITE_VERSION
from .item_run import BRIEFLY, Announce, explained, run_item, shown
from .search import search
from .selection import Item, RunSettings

Kinds = set[tuple[str, str]]
"""Cases or scenarios with a check that failed, and was made small."""
Done = Callable[[Outcome], None]
SAVED = -1
"""The turn of a call that failed in an earlier run."""


@dataclass
class GroupRun:
    """Runs items of one group, in order; `done` is called with each outcome."""

    lab: Lab
    settings: RunSettings
    small: Kinds
    done: Done
    announce: Announce | None = None
    shrinking: Done = lambda outcome: None

    def run(self, items: Sequence[Item]) -> None:
        left = deque(items)
        folder = self.settings.kept_in if items[0].turn == 0 else ""
        while left:
            self._search(left, folder)
            folder = ""

    def _search(self, left: deque[Item], folder: str) -> None:
        """Run items until all have run, or one has failed in a new way: that is made small."""
        failed: Outcome | None = None
        best: Outcome | None = None
        item = left[0]

        def example(source: Source, new: bool) -> bool:
            nonlocal failed, best, item
            if failed is None:
                item = left.popleft() if new else replace(left[0], turn=SAVED)
            outcome = run_item(self.lab, item, source, self.announce if failed is None else None)
            if failed is None and outcome.failed and self._is_new(item, outcome):
                failed = best = outcome
                self.shrinking(outcome)
            elif failed is None:
                if new:
                    self._passed_or_known(item, outcome)
                return False
            elif not outcome.failed or outcome.check != failed.check:
                return False
            elif best is None or simplicity(outcome) < simplicity(best):
                best = outcome
            return True

        opened = self.settings.opening
        key = f"{SUITE_VERSION}/{self.settings.backend}/{opened.device}/{dict(opened.options)}/{item.group}"
        search(
            example,
            len(left),
            item.seed(self.settings.seed),
            kept_in=folder,
            key=key,
            seconds=self.settings.shrink,
        )
        if failed is not None and best is not None:
            self.small.add((item.group, failed.check))
            best = shown(self.lab, item, best, self.settings.backend)
            best.seconds, best.saved = failed.seconds, item.turn == SAVED
            self.done(best)

    def _is_new(self, item: Item, outcome: Outcome) -> bool:
        return self.settings.shrink > 0 and (item.group, outcome.check) not in self.small

    def _passed_or_known(self, item: Item, outcome: Outcome) -> None:
        if outcome.failed:
            self.shrinking(outcome)
            outcome = explained(self.lab, item, outcome, BRIEFLY)
        self.done(outcome)


def simplicity(outcome: Outcome) -> tuple[int, list[int]]:
    return len(outcome.choices), outcome.choices
