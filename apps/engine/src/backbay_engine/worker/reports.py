"""What a worker reports to its host: errors, which the host raises, and log records, which the host's loggers handle."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, final

from backbay import BackbayError

LogLevels: TypeAlias = tuple[dict[str, int], int]
"""The level of each logger that has one, by name, and the level up to which all are silent."""


def pack_error(error: BaseException) -> bytes:
    """An error as bytes; attributes that cannot be pickled stay behind."""
    trace = "".join(traceback.format_exception(error))
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    state = {name: value for name, value in vars(error).items() if _can_be_pickled(value)}
    args = error.__reduce__()[1]  # with the file name of an OSError, which its args lack
    if not _can_be_pickled(args):
        args = (str(error),)
    return pickle.dumps((kinds, args, state, str(error), trace))


def unpack_error(data: bytes) -> BaseException:
    """The error again: of its class, or of the nearest class above it that this process has loaded."""
    kinds, args, state, text, trace = pickle.loads(data)  # noqa: S301  our own worker wrote it
    error = _rebuilt(kinds, args, state, text)
    error.add_note(f"in the model's worker:\n{trace.rstrip()}")
    return error


def _rebuilt(
    kinds: list[tuple[str, str]], args: tuple[Any, ...], state: dict[str, Any], text: str
) -> BaseException:
    for module, name in kinds:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            # The first two without __init__, which may take other arguments than the error keeps.
            for make in (BaseException.__new__, kind.__new__, type.__call__):
                with suppress(Exception):  # its class cannot be made so
                    error: Exception = make(kind, *args)
                    vars(error).update(state)
                    if str(error) == text:
                        return error
    return BackbayError(text)


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001  whatever an error refers to
        return False
    return True


def log_levels() -> LogLevels:
    root = logging.root
    named = {
        name: logger.level
        for name, logger in root.manager.loggerDict.copy().items()
        if isinstance(logger, logging.Logger) and logger.level
    }
    return {"": root.level, **named}, root.manager.disable


def send_records(levels: LogLevels, send: Callable[[bytes], None]) -> None:
    """Let a worker log at the host's levels, and send all records to the host."""
    named, silent = levels
    for name, level in named.items():
        logging.getLogger(name or None).setLevel(level)
    logging.disable(silent)
    logging.root.handlers[:] = [_RecordSender(send)]


def handle_record(data: bytes) -> None:
    """Give a worker's record to the host's logger of its name."""
    record = logging.makeLogRecord(pickle.loads(data))  # noqa: S301  our own worker wrote it
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


@final
class _RecordSender(logging.Handler):
    def __init__(self, send: Callable[[bytes], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(_pack_record(record))
        except Exception:  # noqa: BLE001  as every handler of logging
            self.handleError(record)


def _pack_record(record: logging.LogRecord) -> bytes:
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
