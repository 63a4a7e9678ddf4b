"""The engine's errors, beside those of backbay."""

from __future__ import annotations

from backbay import BackbayError


def as_exception(error: BaseException) -> Exception:
    """The error, or a BackbayError that names it, if it would end the thread or the program of whoever gets it."""
    if isinstance(error, Exception):
        return error
    wrapped = BackbayError(f"the request failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class CacheShiftError(BackbayError):
    """A range cannot be removed from a sequence, because the cache cannot move the positions after it."""


class DroppedHistoryError(CacheShiftError):
    """The positions to move would see earlier positions that a window has dropped."""


class SharedCellsError(CacheShiftError):
    """The cells to move are shared with other sequences, and too few cells are free to copy them."""


class RequestError(BackbayError, ValueError):
    """A request that cannot be served: an empty prompt, a prompt too long, an unknown token id, a wrong option."""


class ContextOverflowError(RequestError):
    """A prompt has more tokens than the model takes: `prompt_tokens` and `context` are both counts."""

    def __init__(self, message: str, prompt_tokens: int = 0, context: int = 0) -> None:
        super().__init__(message)
        self.prompt_tokens, self.context = prompt_tokens, context


class ResponseFormatError(RequestError):
    """A response format that is not understood, that no answer can have, or that is too large; `reason` says why."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class ToolsError(RequestError):
    """Tools that are no tools, that the chat template cannot show, or that the model cannot be made to call."""


class QueueFullError(BackbayError):
    """As many requests wait as may wait; `waiting` is their number. The same request may succeed later."""

    def __init__(self, message: str, waiting: int = 0) -> None:
        super().__init__(message)
        self.waiting = waiting


class DeadlineError(BackbayError):
    """A request had not begun when its deadline passed."""


class ImageError(RequestError):
    """A picture that cannot be taken: damaged, too large, of an unknown kind, or of a size that the model refuses."""


class AudioError(RequestError):
    """A sound that cannot be taken: damaged, empty, too long, of an unknown kind, or with values that are no numbers."""


class LogitsError(BackbayError):
    """A forward pass gave NaN, or logits of which no token can be chosen."""


class TokenizerError(BackbayError, ValueError):
    """A text is not valid Unicode, or an id is not in the vocabulary."""


class TemplateError(BackbayError):
    """A chat template is wrong, refuses its input, or exceeds its limits."""


class UnknownOptionError(RequestError, TypeError):
    """A request has an option that does not exist."""


class SnapshotError(BackbayError, ValueError):
    """A snapshot that cannot be restored: its file cannot be read, or the two classes below say why."""


class DamagedSnapshotError(SnapshotError):
    """A snapshot's file is cut, changed, or no snapshot at all."""


class ForeignSnapshotError(SnapshotError):
    """A snapshot is of another model, or of a model that was loaded in a way that cannot hold it."""
