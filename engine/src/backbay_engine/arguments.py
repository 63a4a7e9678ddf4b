"""What is asked of what callers give: whole numbers in a range, with an error that names the value and the range."""

from __future__ import annotations

from operator import index

from .errors import RequestError

LARGEST = 2**30  # cells, positions and tokens are counted in 32 bits, and padded
MOST_SEQUENCES = 2**16
LARGEST_BATCH = 2**20


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """The value as an integer, of Python's kind or NumPy's; RequestError if it is none, or not in the range."""
    rule = f"of at least {least}" if most is None else f"in [{least}, {most}]"
    try:
        number = index(value)  # type: ignore[arg-type]  # that it may not be one is what is found out
    except TypeError:
        raise RequestError(f"{name} must be an integer {rule}, got {value!r}") from None
    if number < least or (most is not None and number > most):
        raise RequestError(f"{name} must be an integer {rule}, got {value!r}")
    return number


def require_room(parallel: int, context: int) -> None:
    """RequestError if so many sequences of so many tokens are more than a cache can count."""
    if parallel * context > LARGEST:
        raise RequestError(
            f"{parallel} sequences of {context} tokens are {parallel * context} cells of a cache, which has at most "
            f"{LARGEST}; ask for fewer sequences (parallel) or shorter ones (context)"
        )
