"""Constraints: which tokens may come next in an answer."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Constraint(Protocol):
    """Says which tokens may come next in one answer. Its calls never overlap, but come from several threads."""

    def mask(self) -> bytes | None:
        """A bit for each token, the lowest of the first byte for token 0: 1 if it may be chosen next.

        None: any token may. No bytes: the answer ends here.
        Called while the backend computes the step that the mask is for.
        """

    def accept(self, token: int) -> None:
        """Take the answer's next token."""


def forbidden(mask: bytes, size: int) -> NDArray[np.bool_]:
    """Which tokens of a vocabulary a mask rules out, (size,); a mask may be longer, and what it lacks is ruled out."""
    given = np.frombuffer(mask or bytes(1), np.uint8)  # NumPy does not clear the bits of an empty array
    bits = np.unpackbits(given, count=size, bitorder="little")
    return bits.view(np.bool_) ^ True
