"""What an engine offers to a model's face: requests by token ids, and facts about the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory

from ..runner.answer import Completion, Handle
from ..runner.options import GenerationOptions
from ..text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Facts:
    """A model's properties; they never change while it is open.

    context     tokens of each sequence
    batch       tokens of one step
    generates   whether it generates text; otherwise it makes embeddings
    """

    architecture: str
    vocabulary_size: int
    context: int
    batch: int
    generates: bool


class Engine(ABC):
    """Runs the steps of one model. Prompts come as checked token ids; any thread may call any method."""

    facts: Facts
    tokenizer: Tokenizer | None
    """None if the file has no vocabulary."""

    @abstractmethod
    def check_open(self) -> None:
        """ClosedError if the engine is closed."""

    @abstractmethod
    def generate(self, ids: Sequence[int], options: GenerationOptions) -> Handle[Completion]:
        """Queue a request for text."""

    @abstractmethod
    def score(self, ids: Sequence[int]) -> Handle[NDArray[np.float32]]:
        """Queue a request for the logits after each token, (tokens, vocabulary)."""

    @abstractmethod
    def embed(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """A vector for each prompt, (prompts, width)."""

    @abstractmethod
    def memory(self) -> BackendMemory:
        """The memory of the weights, the cache and the largest graph."""

    @abstractmethod
    def forget(self) -> None:
        """Wait until no request runs, then empty the cache."""

    @abstractmethod
    def close(self) -> None:
        """End all requests and free everything. Closing again does nothing."""
