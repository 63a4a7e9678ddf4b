"""Constraints for tests, at the top of a module, so that a worker can import them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from time import sleep

import numpy as np


def mask_of(ids: Iterable[int], size: int) -> bytes:
    bits = np.zeros(size, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


class Among:
    """Allows the same tokens in every place; keeps what it was told."""

    def __init__(self, ids: Iterable[int], size: int) -> None:
        self._mask = mask_of(ids, size)
        self.accepted: list[int] = []

    def mask(self) -> bytes | None:
        return self._mask

    def accept(self, token: int) -> None:
        self.accepted.append(token)


class Spelled:
    """Forces tokens one after the other, but leaves some places open (None)."""

    def __init__(self, places: list[int | None], size: int) -> None:
        self._left, self._size = list(places), size

    def mask(self) -> bytes | None:
        place = self._left[0] if self._left else None
        return None if place is None else mask_of([place], self._size)

    def accept(self, token: int) -> None:
        if self._left:
            expected = self._left.pop(0)
            if expected not in (None, token):
                raise ValueError(f"token {token} where {expected} was forced")


class Failing:
    """Fails in the given method after some calls."""

    def __init__(self, method: str, after: int, error: BaseException | None = None) -> None:
        self._method, self._left = method, after
        self._error = error or ArithmeticError(f"{method} failed")

    def mask(self) -> bytes | None:
        self._count("mask")
        return None

    def accept(self, token: int) -> None:
        self._count("accept")

    def _count(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left < 0:
                raise self._error


class Holding:
    """Allows every token, and holds the first process that asks for so many, which leaves a file as a mark."""

    def __init__(self, mark: Path, after: int) -> None:
        self._mark, self._left = mark, after

    def mask(self) -> bytes | None:
        self._left -= 1
        if self._left == 0 and not self._mark.exists():
            self._mark.touch()
            sleep(600)
        return None

    def accept(self, token: int) -> None:
        pass
