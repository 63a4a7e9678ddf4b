"""One forward pass: the tokens that go through the model together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float32]


@final
@dataclass(frozen=True, slots=True, eq=False)
class PictureRows:
    """Rows of pictures in a step, and the tokens whose embeddings they replace."""

    values: Floats  # (rows, width)
    tokens: Ints  # (rows,), indices in the step

    @property
    def room(self) -> int:
        """The rows that a traced step holds for them: a power of two, so that few shapes serve all steps."""
        return 1 << (len(self.tokens) - 1).bit_length()


@final
@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """The tokens of one forward pass, of one or several sequences, and which of them are outputs."""

    tokens: Ints  # (n,)
    positions: Ints  # (n,), position of each token in its sequence
    sequences: Ints  # (n,), sequence of each token
    outputs: Ints  # (k,), indices of the tokens whose results are wanted
    spans: Ints | None = None  # (n,), number of each token's span, or -1; tokens of a span see each other
    rows: PictureRows | None = None
    axes: Ints | None = None  # (3, n), M-RoPE's positions: time, row and column; None: all are `positions`

    @property
    def size(self) -> int:
        return len(self.tokens)
