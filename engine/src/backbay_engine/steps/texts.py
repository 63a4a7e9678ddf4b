"""Texts for an encoder, at the begin of a sequence: their tokens are numbers below 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .step import Ints
from .tokens import Token

LAST = 1 << 30  # marks the last token: a text that goes on is another text


def text_tokens(ids: Sequence[int]) -> list[int]:
    """The tokens of a text for the encoder."""
    return [~token for token in ids[:-1]] + [~(token | LAST) for token in ids[-1:]]


def text_length(sequence: Sequence[Token]) -> int:
    """The number of tokens for the encoder that a sequence begins with."""
    return next(
        (at for at, token in enumerate(sequence) if not isinstance(token, int) or token >= 0), len(sequence)
    )


def text_ids(tokens: Ints) -> Ints:
    """The ids of tokens for the encoder."""
    return np.asarray(~tokens & (LAST - 1), np.int32)


def plain_ids(tokens: Sequence[int]) -> list[int]:
    """The ids of tokens, for the encoder or not."""
    return [token if token >= 0 else ~token & (LAST - 1) for token in tokens]
