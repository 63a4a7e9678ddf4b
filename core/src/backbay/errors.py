"""The error classes of backbay, under one root."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph.graph import Node
    from .memory.report import BackendMemory


def shorten(value: object, most: int = 1000) -> str:
    """A text for a message: the beginning and the end of what a file holds, if that is long."""
    text = str(value)
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} ... {text[-most // 4 :]} ({len(text)} characters)"


def nearest(word: str, words: Iterable[str]) -> str:
    """`; nearest: ...` for a message, or an empty string. Names come from files, so the search is bounded."""
    from difflib import get_close_matches  # takes longer to import than most of core

    candidates = islice((name for name in words if len(name) < 100), 5000)
    matches = get_close_matches(word, candidates, n=3, cutoff=0.6)
    return f"; nearest: {', '.join(map(repr, matches))}" if matches else ""


def reason_of(error: BaseException) -> str:
    """The text of an error, or, if it has none, the name of its class."""
    return str(error) or type(error).__name__


def describe_error(error: BaseException) -> str:
    """An error of a plugin's code in one line, with the name of its class; core's own errors say enough."""
    if isinstance(error, BackendUnavailableError):
        return str(error)
    line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


class BackbayError(Exception):
    """The root of all errors of backbay."""


class ShapeError(BackbayError, ValueError):
    """An operation does not take these shapes, strides or sizes."""


class DTypeError(BackbayError, TypeError):
    """An operation does not take this dtype or this kind of tensor."""


class ClosedError(BackbayError):
    """A backend, context, tensor or file was used after it was closed."""


class ContextBusyError(BackbayError):
    """One context was used from two threads at once."""


class NotComputedError(BackbayError):
    """A tensor was read that is neither a leaf nor named by the latest compute."""


class CancelledError(BackbayError):
    """A load or a compute was cancelled; the data that it wrote are invalid."""

    def __init__(self, message: str = "cancelled; the data written so far are invalid") -> None:
        super().__init__(message)


class GraphSizeError(BackbayError):
    """A context traced more nodes than its limit."""


class UnsupportedOpError(BackbayError):
    """A backend has neither a kernel nor a composite for an operation on these dtypes."""


class DeclaredUnsupportedError(UnsupportedOpError):
    """Core refused an operation, because `Backend.supports` says that the backend cannot run it."""


class RefusalError(UnsupportedOpError):
    """A backend refused, when it compiled, an op that `supports` accepts: its shapes, layout or attributes decided.

    `node` is the op in the graph, if the backend knows it.
    """

    def __init__(self, reason: str, node: Node | None = None) -> None:
        operands = "" if node is None else " x ".join(map(str, node.operands))
        super().__init__(
            reason if node is None or node.op is None else f"{node.op.name}: {operands}: {reason}"
        )
        self.reason, self.node = reason, node


class GuardZoneError(BackbayError):
    """A kernel wrote outside of its memory, into a guard zone."""


class BackendUnavailableError(BackbayError):
    """An installed backend cannot work on this machine; the message says what is missing and how to mend it."""


class OptionError(BackbayError, ValueError):
    """A backend does not know a parameter, or does not take its value."""


class CacheFullError(BackbayError):
    """A cache has too few free cells for a sequence."""

    def __init__(self, sequence: int, need: int, room: int) -> None:
        super().__init__(f"cache is full: sequence {sequence} needs {need} cells, {room} are free")
        self.sequence, self.need, self.room = sequence, need, room


class UnknownBackendError(BackbayError, LookupError):
    """No backend of the given name is installed."""

    def __init__(self, name: str, installed: Iterable[str], asked_by: str = "") -> None:
        from difflib import get_close_matches  # takes longer to import than most of core

        names = sorted(installed)
        nearest = get_close_matches(name, names, n=2, cutoff=0.5)
        hint = f"; did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        source = f", which {asked_by} asks for" if asked_by else ""
        super().__init__(f"no backend {name!r}{source}; installed: {', '.join(names) or 'none'}{hint}")
        self.name, self.installed = name, names


class NoMemoryError(BackbayError, MemoryError):
    """An allocation failed; `memory` holds the report, with the failing entry marked Failed."""

    def __init__(self, message: str, memory: BackendMemory) -> None:
        super().__init__(f"{message}\n{memory.table()}")
        self.memory = memory


class ModelFileError(BackbayError, ValueError):
    """A model file is damaged, hostile, or contradicts itself."""

    def __init__(
        self, path: str | os.PathLike[str], offset: int | None, expected: object, found: object
    ) -> None:
        self.path, self.offset = os.fspath(path), offset
        where = self.path if offset is None else f"{self.path} at byte {offset}"
        super().__init__(f"{where}: expected {shorten(expected)}, found {shorten(found)}")
        self.expected, self.found = expected, found
