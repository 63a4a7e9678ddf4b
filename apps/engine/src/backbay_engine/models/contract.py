"""The contract of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence

from backbay import BackbayError, Backend, Context, Tensor

from ..cache.contract import Cache
from ..steps.step import Step
from .batch import Batch


class Model(ABC):
    """A forward pass over the weights of a file. It sees only tensors, and keeps no state between steps."""

    keeps_rows: bool = False
    """Whether `forward` taps the vectors before its output matrix as "output_norm", for each token, to be kept."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @abstractmethod
    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """Trace the forward pass; gives a column for each output, (n, outputs): logits, or the embedding of the
        output's text.
        """

    def prompt(self, ids: Sequence[int]) -> Sequence[int]:
        """The tokens that a sequence begins with for the token ids of a prompt."""
        return ids

    def worst_steps(self, steps: Sequence[Step]) -> Sequence[Step]:
        """The largest steps, where those of a decoder are `steps`."""
        return steps

    def fit(self, context: int) -> None:
        """Prepare for sequences of up to `context` tokens; called once, before the first step."""

    def new_cache(self) -> Cache | None:
        """The cache that this model needs; None if a step needs nothing of earlier ones."""
        return None

    def key(self, step: Step) -> Hashable:
        """A part of the key of traced steps, for a graph that depends on more than sizes and the cache's plan."""
        return None

    def cross(self, ctx: Context, rows: Tensor, put: Callable[[Context, int, Tensor, Tensor], None]) -> None:
        """Trace the keys and values of a picture's rows, (width, n), for the layers that see pictures; `put` stores
        those of a layer, (head_dim, kv_heads, n).
        """
        raise BackbayError(f"{type(self).__name__} has no layers that see pictures")

    @property
    def embedded(self) -> int:
        """The number of token ids that have an embedding; some are never predicted."""
        return self.vocabulary_size

    @property
    def row_widths(self) -> tuple[int, ...]:
        """The features of a row that may take the place of a token's embedding, without further vectors, and with them if
        its blocks add any; none: there is no such place.
        """
        return ()

    @property
    def ranks(self) -> bool:
        """Whether the results for whole texts are scores, (labels, outputs), instead of vectors."""
        return False

    @property
    def transcribes(self) -> bool:
        """Whether it writes transcripts of sounds, and nothing else."""
        return False

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """The number of token ids."""
