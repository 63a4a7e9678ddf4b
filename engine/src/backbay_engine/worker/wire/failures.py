"""Errors on the wire: class, text, attributes, notes, and the worker's traceback as a note."""

from __future__ import annotations

import pickle
import sys
import traceback
from contextlib import suppress
from typing import Any

from backbay import BackbayError


def packed(error: BaseException) -> bytes:
    """An error as bytes; attributes that cannot be pickled stay behind."""
    trace = "".join(traceback.format_exception(error))
    kinds = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__]
    state = {name: value for name, value in vars(error).items() if _can_be_pickled(value)}
    args = error.__reduce__()[1]  # with the file name of an OSError, which its args lack
    if not _can_be_pickled(args):
        args = (str(error),)
    return pickle.dumps((kinds, args, state, str(error), trace))


def unpacked(data: bytes) -> BaseException:
    """The error again: of its class, or of the nearest class above it that this process has loaded."""
    kinds, args, state, text, trace = pickle.loads(data)  # noqa: S301  our own worker wrote it
    error = _made(kinds, args, state, text)
    error.add_note(f"in the model's worker:\n{trace.rstrip()}")
    return error


def _made(
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
