"""What the suite finds wrong with a backend: its error, and two checks that raise it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from backbay import BackbayError, DeclaredUnsupportedError, RefusalError


class Fault(BackbayError):  # noqa: N818 a finding about the backend, not an error of the suite
    """A breach of the contract, with the check that noticed it and a message.

    `place` is the index of the first wrong element in the array of the result, if elements were compared; `judged` is
    then what was judged.
    """

    judged: Any = None

    def __init__(self, check: str, message: str, place: tuple[int, ...] | None = None) -> None:
        super().__init__(check, message)
        self.check, self.message, self.place = check, message, place

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


def require(holds: object, what: str, *values: object, check: str = "memory") -> None:
    """Raise Fault with `what`, and the values behind it, unless something holds."""
    if not holds:
        raise Fault(check, f"{what}: {', '.join(map(str, values))}" if values else what)


def must_raise(
    what: str, expected: type[BackbayError], act: Callable[[], Any], check: str = "errors"
) -> None:
    try:
        act()
    except expected:
        return
    except (DeclaredUnsupportedError, RefusalError):
        raise
    except Exception as other:
        got = f"{type(other).__name__}: {other}"
        raise Fault(check, f"{what}: expected {expected.__name__}, got {got}") from other
    raise Fault(check, f"{what}: expected {expected.__name__}, and nothing was raised")
