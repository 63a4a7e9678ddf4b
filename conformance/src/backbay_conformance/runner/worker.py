"""The worker process: it announces each call before it runs it, and then tells its outcome."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from backbay.discovery import entry, trial_seconds

from ..checks.model_calls import model_calls
from ..report.report import Outcome
from ..suite.extensions import load_extensions
from ..suite.lab import Lab, Opening, lab_with
from .item_run import BRIEFLY, explained, run_item, shrunk
from .selection import Item


class Line:
    """Messages to the run, one JSON text per line, over a descriptor that printing does not use."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._lock = descriptor, Lock()

    def say(self, **message: Any) -> None:
        data = (json.dumps(message) + "\n").encode()
        with self._lock:  # threads of the backend may warn at the same time
            while data:
                data = data[os.write(self._descriptor, data) :]


def main() -> None:
    """Read jobs from standard input, one per line, until it ends."""
    for one in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # they reach the whole process group; the run ends its workers itself
        signal.signal(one, signal.SIG_IGN)
    line = Line(int(sys.argv[1]))
    start = json.loads(sys.stdin.readline())
    load_extensions()
    opening = Opening.from_dict(start["opening"])
    try:
        with _warnings_told(line):
            line.say(trial_seconds=trial_seconds(entry(start["backend"]).load()))
            lab = lab_with(start["backend"], opening)
            facts = lab.facts()
        left_out: list[str] = []
        if start["like"]:
            lab.model_calls, left_out = model_calls(lab, Path(start["like"]))
    except BaseException as error:  # noqa: BLE001 a plugin that cannot be opened may even exit
        line.say(fatal=f"{type(error).__name__}: {error}")
        return
    line.say(
        facts=facts, asked={"calls": {op: len(c) for op, c in lab.model_calls.items()}, "left_out": left_out}
    )
    for text in sys.stdin:
        job = json.loads(text)
        shown = {(group, check) for group, check in job["shown"]}
        for profile, name, turn, replay in job["tries"]:
            _try(line, lab, Item(profile, name, turn), start, replay, shown)
        line.say(idle=True)
    lab.discard()


class _Teller(logging.Handler):
    """Sends warnings to the run."""

    def __init__(self, line: Line) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.say(warning=record.getMessage())
        except Exception:  # noqa: BLE001  logging raises nothing into the code that warns
            self.handleError(record)


@contextmanager
def _warnings_told(line: Line) -> Iterator[None]:
    """Send backbay's warnings to the run, such as those about a device's trial, which takes minutes."""
    handler, logger = _Teller(line), logging.getLogger("backbay")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _try(
    line: Line,
    lab: Lab,
    item: Item,
    start: dict[str, Any],
    replay: list[int] | None,
    shown: set[tuple[str, str]],
) -> None:
    outcome = run_item(lab, item, start["seed"], replay, lambda known: line.say(call=vars(known)))
    if outcome.failed and start["shrink"] > 0:
        line.say(call=vars(outcome), shrinking=True)
        kind = (item.group, outcome.check)
        outcome = (
            explained(lab, item, start["seed"], outcome, BRIEFLY)
            if kind in shown
            else _shrunk(lab, item, start, outcome)
        )
        shown.add(kind)
    line.say(done=vars(outcome))


def _shrunk(lab: Lab, item: Item, start: dict[str, Any], outcome: Outcome) -> Outcome:
    return shrunk(lab, item, start["seed"], outcome, start["backend"], start["shrink"])


if __name__ == "__main__":
    main()
