"""Log records of a worker, which the host's own loggers handle."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from typing import final

Levels = tuple[dict[str, int], int]


def levels() -> Levels:
    """The level of each logger that has one, by name, and the level up to which all are silent."""
    root = logging.root
    named = {
        name: logger.level
        for name, logger in root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {"": root.level, **named}, root.manager.disable


def hand_on(told: Levels, send: Callable[[bytes], None]) -> None:
    """Let a worker log at the host's levels, and send all records to the host."""
    named, silent = told
    for name, level in named.items():
        logging.getLogger(name or None).setLevel(level)
    logging.disable(silent)
    logging.root.handlers[:] = [_Sending(send)]


def handle(data: bytes) -> None:
    """Give a worker's record to the host's logger of its name."""
    record = logging.makeLogRecord(pickle.loads(data))  # noqa: S301  our own worker wrote it
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


@final
class _Sending(logging.Handler):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(_packed(record))
        except Exception:  # noqa: BLE001  as every handler of logging
            self.handleError(record)


def _packed(record: logging.LogRecord) -> bytes:
    """A record with its message and its traceback as text, as in logging.handlers.QueueHandler."""
    sent = copy.copy(record)
    sent.msg, sent.args = record.getMessage(), None
    if record.exc_info and not record.exc_text:
        sent.exc_text = logging.Formatter().formatException(record.exc_info)
    sent.exc_info = None
    fields = vars(sent)
    try:
        return pickle.dumps(fields)
    except Exception:  # noqa: BLE001  an attribute that somebody added
        known = vars(logging.makeLogRecord({}))
        return pickle.dumps({name: fields[name] for name in known})
