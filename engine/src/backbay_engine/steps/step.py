"""One forward pass: the tokens that go through the model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Tokens of any sequences, in one forward pass, and which of them are to answer."""

    tokens: Ints  # (n,)
    positions: Ints  # (n,), of each token in its sequence
    sequences: Ints  # (n,), the sequence that each belongs to
    outputs: Ints  # (k,), the tokens whose results are wanted, as indices into tokens
    spans: Ints | None = (
        None  # (n,), tokens of one span, a number >= 0, see each other; None: causal throughout
    )

    @property
    def size(self) -> int:
        return len(self.tokens)
