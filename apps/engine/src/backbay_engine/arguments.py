"""Arguments of callers, checked: an error names the value and the rule."""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Collection, Iterable, Mapping
from numbers import Real
from operator import index
from time import monotonic
from typing import Any, TypeAlias

from backbay import BackendParams, OptionError
from backbay.gguf import nearest

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


AdapterMix: TypeAlias = tuple[tuple[str, float], ...]
"""Adapters and their scales; none: the model as it is."""
AdapterChoice: TypeAlias = str | Mapping[str, float] | AdapterMix | None
"""The adapters of a request, as users give them: a name, or scales by name."""


def adapter_mix(given: object) -> AdapterMix:
    """The adapters of a request: a name, or scales by name; None: none."""
    if given is None:
        return ()
    pairs = {given: 1.0} if isinstance(given, str) else given
    items = pairs.items() if isinstance(pairs, Mapping) else pairs if isinstance(pairs, tuple) else None
    try:
        mix = (
            [(name, float(scale)) for name, scale in items if _is_number(scale)] if items is not None else []
        )
        whole = items is not None and len(mix) == len(items)
    except (TypeError, ValueError, OverflowError):
        mix, whole = [], False
    if not whole or not all(isinstance(name, str) and math.isfinite(scale) for name, scale in mix):
        raise RequestError(
            'adapter must be a name, or finite scales by name, such as {"sql": 1.0, "tone": 0.5}, '
            f"got {reprlib.repr(given)}"
        )
    return tuple(mix)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def gpu_shares(given: Any) -> tuple[float, ...]:
    """The shares of GPUs, from a list, an array or a generator; OptionError if they are none."""
    try:
        shares = [float(share) if _is_number(share) else math.nan for share in given]
    except (TypeError, OverflowError):
        shares = [math.nan]
    if isinstance(given, bytes) or not all(0 <= share < math.inf for share in shares):
        raise OptionError(
            f"tensor_split must be finite numbers, a share for each GPU, none negative, got {given!r}"
        )
    return tuple(shares)


def adapter_files(given: object) -> dict[str, Any]:
    """The files and folders of adapters by name; OptionError if they are none."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(
        isinstance(each, str | os.PathLike) for each in given.values()
    ):
        raise OptionError(f"adapters must be files or folders by name, got {reprlib.repr(given)}")
    for name in given:
        adapter_name(name)
    return dict(given)


def adapter_name(name: object) -> str:
    """The name of an adapter; OptionError if it can be none."""
    if not isinstance(name, str) or not name.strip() or ":" in name or not name.isprintable():
        raise OptionError(f"an adapter's name is a text without a colon, got {name!r}")
    return name


def unknown_adapter(name: str, known: Collection[str]) -> RequestError:
    """The error for a name that no adapter has."""
    listed = f"; there are {', '.join(known)}" if known else "; none is loaded (adapters=)"
    return RequestError(f"no adapter {name!r}{nearest(name, known)}{listed}")
