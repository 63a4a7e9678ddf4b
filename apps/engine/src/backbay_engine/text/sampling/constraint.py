"""Constraints: which tokens may come next in an answer."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

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


def mask_logits(row: NDArray[np.float32], mask: bytes) -> None:
    """Make the logits that a mask rules out -inf; a mask may be longer than the row, and what it lacks is ruled out."""
    given = np.frombuffer(mask, np.uint8)[: -(-len(row) // 8)]
    held = min(8 * len(given), len(row))
    with np.errstate(invalid="ignore"):  # an infinite logit becomes NaN, which the sampler refuses as well
        row[:held] += _ADDED.take(given, axis=0).reshape(-1)[:held]  # much faster than an index of booleans
    row[held:] = -np.inf


_BITS: Final = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_ADDED: Final = np.where(_BITS, np.float32(0), np.float32(-np.inf))  # for each byte, to eight logits
