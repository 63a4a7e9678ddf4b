"""The worker process: it announces each call before it runs it, and then tells its outcome."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from backbay.discovery import entry, trial_seconds

from ..checks.model_calls import ModelCalls, read_model_calls
from ..suite.extensions import load_extensions
from ..suite.lab import Lab, Opening, lab_with
from .item_run import BRIEFLY, explain_failure, run_item, shrunk
from .selection import Item, RunSettings

Kinds = set[tuple[str, str]]  # a case or scenario, and the check that failed


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
    for one in (signal.SIGINT, signal.SIGTERM):  # which all of the group get; the run ends its workers itself
        signal.signal(one, signal.SIG_IGN)
    line = Line(int(sys.argv[1]))
    start = json.loads(sys.stdin.readline())
    settings = RunSettings(**{**start, "opening": Opening.from_dict(start["opening"])})
    load_extensions()
    handler, logger = _Teller(line), logging.getLogger("backbay")
    logger.addHandler(handler)  # a trial of a device takes minutes, and warns of it
    try:
        line.say(trial_seconds=trial_seconds(entry(settings.backend).load()))
        lab = lab_with(settings.backend, settings.opening)
        facts = lab.facts()
        logger.removeHandler(handler)
        found = read_model_calls(lab, Path(settings.like)) if settings.like else ModelCalls()
    except BaseException as error:  # noqa: BLE001 a plugin that cannot be opened may even exit
        line.say(fatal=f"{type(error).__name__}: {error}")
        return
    line.say(facts=facts, asked=vars(found))
    for text in sys.stdin:
        job = json.loads(text)
        shown = {(group, check) for group, check in job["shown"]}
        for profile, name, turn, replay in job["tries"]:
            _try(line, lab, Item(profile, name, turn), settings, replay, shown)
        line.say(idle=True)
    lab.discard()


class _Teller(logging.Handler):
    def __init__(self, line: Line) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.say(warning=record.getMessage())
        except Exception:  # noqa: BLE001  logging raises nothing into the code that warns
            self.handleError(record)


def _try(
    line: Line, lab: Lab, item: Item, settings: RunSettings, replay: list[int] | None, shown: Kinds
) -> None:
    seed = settings.seed
    outcome = run_item(lab, item, seed, replay, lambda known: line.say(call=vars(known)))
    if outcome.failed and settings.shrink > 0:
        line.say(call=vars(outcome), shrinking=True)
        kind = (item.group, outcome.check)
        if kind in shown:
            outcome = explain_failure(lab, item, seed, outcome, BRIEFLY)
        else:
            outcome = shrunk(lab, item, seed, outcome, settings.backend, settings.shrink)
        shown.add(kind)
    line.say(done=vars(outcome))


if __name__ == "__main__":
    main()
