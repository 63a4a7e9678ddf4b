"""The worker process: it announces each call before it runs it, and then tells its outcome."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from backbay import BackbayError
from backbay.discovery import entry, trial_seconds

from ...draw.choices import Source, replayed
from ...report.report import Outcome
from ...suite.extensions import load_extensions
from ...suite.lab import Lab, OpenSettings, lab_with
from ...workloads.model_calls import ModelCallCounts, read_model_calls
from ..items.group_run import GroupRunner, Kinds
from ..items.item_run import describe, run_item
from ..items.worst_inputs import run_group
from ..selection import HuntBudget, Item, RunSettings, in_rounds


class MessageChannel:
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
    line = MessageChannel(int(sys.argv[1]))
    start = json.loads(sys.stdin.readline())
    budget = HuntBudget(**start["hunt"]) if start["hunt"] else None
    settings = RunSettings(**{**start, "opening": OpenSettings.from_dict(start["opening"]), "hunt": budget})
    load_extensions()
    handler, logger = _Teller(line), logging.getLogger("backbay")
    logger.addHandler(handler)  # a trial of a device takes minutes, and warns of it
    try:
        kind = entry(settings.backend).load()
        line.say(trial_seconds=trial_seconds(kind, settings.opening.options))
        lab = lab_with(settings.backend, settings.opening, settings.against)
        facts = lab.facts()
        logger.removeHandler(handler)
    except BaseException as error:  # noqa: BLE001 a plugin that cannot be opened may even exit
        line.say(fatal=f"{type(error).__name__}: {error}")
        return
    try:
        found = read_model_calls(lab, Path(settings.like)) if settings.like else ModelCallCounts()
    except Exception as error:  # noqa: BLE001 whatever the model's file does to its reader
        line.say(unread=f"--like: {error}" if isinstance(error, BackbayError) else f"--like: {error!r}")
        return
    line.say(facts=facts, asked=vars(found))
    for text in sys.stdin:
        job = json.loads(text)
        items = [Item(*item) for item in job["items"]]
        if "recorded" in job:
            failed = Outcome(**job["recorded"])
            _try_again(line, lab, items[0], replayed(failed.choices), failed)
        elif "described" in job:
            casualty = Outcome(**job["described"])
            with suppress(Exception):  # the choices are enough
                describe(lab, items[0], casualty, settings.backend)
            line.say(done=vars(casualty))
        elif "asks" in job:
            _try_again(line, lab, items[0], partial(_asked, line))
        else:
            small = {(group, check) for group, check in job["small"]}
            _run(line, lab, items, settings, small)
        line.say(idle=True)
    lab.discard()


class _Teller(logging.Handler):
    def __init__(self, line: MessageChannel) -> None:
        super().__init__(logging.WARNING)
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._line.say(warning=record.getMessage())
        except Exception:  # noqa: BLE001  logging raises nothing into the code that warns
            self.handleError(record)


def _run(line: MessageChannel, lab: Lab, items: list[Item], settings: RunSettings, small: Kinds) -> None:
    def announce(outcome: Outcome) -> None:
        line.say(call=vars(outcome))

    def done(outcome: Outcome) -> None:
        line.say(done=vars(outcome))

    run = GroupRunner(lab, settings, small, done, announce, announce)
    for together in in_rounds(items):
        run_group(run, together)


def _try_again(
    line: MessageChannel, lab: Lab, item: Item, source: Source, recorded: Outcome | None = None
) -> None:
    line.say(done=vars(run_item(lab, item, source, lambda known: line.say(call=vars(known)), recorded)))


def _asked(line: MessageChannel, n: int, by_turn: int | None) -> int:
    """A choice that the run makes."""
    line.say(below=n)
    return int(json.loads(sys.stdin.readline()))


if __name__ == "__main__":
    main()
