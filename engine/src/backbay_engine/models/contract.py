"""What every architecture is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable

from backbay import Backend, Context, Tensor

from ..cache.contract import Cache
from ..steps.step import Step
from .batch import Batch


class Model(ABC):
    """A forward pass over the weights of a file. It sees tensors only, and keeps nothing between steps."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @abstractmethod
    def forward(self, ctx: Context, batch: Batch) -> Tensor:
        """The result for each of the batch's outputs, (n, outputs): logits, or, where it has no head, the vector of
        the text that the output belongs to.
        """

    def fit(self, context: int) -> None:
        """Told before the first step how many tokens a sequence may come to, by models to which that matters."""

    def new_cache(self) -> Cache | None:
        """What this model remembers between steps; None if it looks at its batch alone."""
        return None

    def key(self, step: Step) -> Hashable:
        """What, beside its sizes and the cache's plan, makes a step need another graph."""
        return None

    @property
    @abstractmethod
    def vocabulary_size(self) -> int:
        """How many tokens it knows: ids are below."""
