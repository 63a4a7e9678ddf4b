"""Arguments of callers, checked: an error names the value and the rule."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping
from numbers import Real
from operator import index
from time import monotonic
from typing import Any

from backbay import BackendParams, OptionError

from .errors import ContextOverflowError, RequestError

LARGEST = 2**30  # cells, positions and tokens are counted in 32 bits, and padded
MOST_SEQUENCES = 2**16
LARGEST_BATCH = 2**20


def whole_number(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an integer, Python's or NumPy's; RequestError if it is none, or out of range."""
    rule = f"of at least {least}" if most is None else f"in [{least}, {most}]"
    try:
        number = index(value)  # type: ignore[arg-type]  # raises TypeError if it is no integer
    except TypeError:
        raise RequestError(f"{name} must be an integer {rule}, got {value!r}") from None
    if number < least or (most is not None and number > most):
        raise RequestError(f"{name} must be an integer {rule}, got {value!r}")
    return number


def moment(name: str, seconds: object) -> float:
    """The time in so many seconds, by `time.monotonic`, which all processes of a machine share; None: never."""
    if seconds is None:
        return math.inf
    try:
        number = float(seconds) if isinstance(seconds, Real) else math.nan
    except OverflowError:
        return math.inf
    if not number > 0:
        raise RequestError(f"{name} must be a number of seconds above 0 or None, got {seconds!r}")
    return monotonic() + number


def require_cache_room(parallel: int, context: int) -> None:
    """RequestError if this many sequences of this many tokens are more than a cache can count."""
    if parallel * context > LARGEST:
        raise RequestError(
            f"{parallel} sequences of {context} tokens are {parallel * context} cells of a cache, which has at most "
            f"{LARGEST}; ask for fewer sequences (parallel) or shorter ones (context)"
        )


def require_fitting_prompt(told: str, tokens: int, most: int) -> None:
    """ContextOverflowError if there are more tokens than the model takes; its text gets both numbers."""
    if tokens > most:
        raise ContextOverflowError(told.format(tokens, most), tokens, most)


def require_params(name: str, given: BackendParams | None) -> BackendParams | None:
    """The parameters; OptionError if they are none."""
    if given is not None and not isinstance(given, BackendParams):
        raise OptionError(f"{name} must be BackendParams, got {given!r}")
    return given


def token_ids(given: object, rule: str = "a prompt must be a text, token ids, or parts") -> list[int]:
    """The token ids of a prompt that is no text, or of another argument, by its rule."""
    try:
        if isinstance(given, Iterable) and not isinstance(given, bytes):
            return [index(token) for token in given]
    except TypeError:
        pass
    raise RequestError(f"{rule}, got {reprlib.repr(given)}")


def stop_strings(stop: object) -> tuple[str, ...]:
    """Stop strings: one, several or None."""
    given = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        strings = tuple(given)
        if all(isinstance(each, str) for each in strings):
            return strings
    raise RequestError(f"stop must be a string or several, got {reprlib.repr(stop)}")


def conversation_messages(messages: object) -> list[Mapping[str, Any]]:
    """The messages of a conversation: at least one, each with a role."""
    listed = (
        list(messages) if isinstance(messages, Iterable) and not isinstance(messages, (str, Mapping)) else []
    )
    if listed and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in listed):
        return listed
    raise RequestError(
        'messages must be mappings such as {"role": "user", "content": "Hello!"}, one at least, '
        f"got {reprlib.repr(messages)}"
    )
