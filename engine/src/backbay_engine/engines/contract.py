"""What an engine offers to a model's face: requests by token ids, and facts about the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay import BackendMemory

from ..images.picture import Image
from ..images.prepared import Prepared
from ..images.prompts import Parts
from ..images.store import Counters
from ..runner.requests.answer import Completion
from ..runner.requests.handle import Handle, OnStep
from ..runner.requests.options import GenerationOptions
from ..runner.state import State
from ..snapshots import Snapshot
from ..text.tokenizers import Tokenizer

Prompt: TypeAlias = Sequence[int] | Parts
"""Checked token ids, or parts of which only the form is checked."""


@dataclass(frozen=True)
class SightFacts:
    """What the face of a model that sees must know of its family.

    family       the name of its preparation
    placeholder  the text by which its chat template marks a picture
    marker       the text that stands for a picture in a template that knows no pictures
    """

    family: str
    placeholder: str
    marker: str


@dataclass(frozen=True)
class Facts:
    """A model's properties; they never change while it is open.

    context     tokens of each sequence
    batch       tokens of one step
    generates   whether it generates text; otherwise it makes embeddings, or scores of texts
    ranks       whether it makes scores of pairs, of a query and a text
    sight       None: the model sees no pictures
    """

    architecture: str
    vocabulary_size: int
    context: int
    batch: int
    generates: bool
    sight: SightFacts | None = None
    ranks: bool = False


class Engine(ABC):
    """Runs the steps of one model. Any thread may call any method."""

    facts: Facts
    tokenizer: Tokenizer | None
    """None if the file has no vocabulary."""

    @abstractmethod
    def check_open(self) -> None:
        """ClosedError if the engine is closed."""

    @abstractmethod
    def generate(
        self, prompt: Prompt, options: GenerationOptions, on_step: OnStep | None, begin_by: float
    ) -> Handle[Completion]:
        """Queue a request for text, which is to begin by a time of `time.monotonic`."""

    @abstractmethod
    def save(self, source: Sequence[int] | Handle[Any]) -> Snapshot:
        """The snapshot of a request for text, or of a prompt, which is computed as far as it is not in the cache."""

    @abstractmethod
    def restore(self, snapshot: Snapshot) -> None:
        """Let a sequence hold what a snapshot has, as soon as one is free."""

    @abstractmethod
    def score(self, prompt: Prompt) -> Handle[NDArray[np.float32]]:
        """Queue a request for the logits after each token, (tokens, vocabulary)."""

    @abstractmethod
    def score_tokens(self, prompt: Sequence[int], top: int) -> Handle[int]:
        """Queue a request for the log-probabilities of the tokens, which its steps tell; the result is their number."""

    @abstractmethod
    def embed(self, prompts: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """A vector for each prompt, (prompts, width), or its scores, (prompts, labels)."""

    @abstractmethod
    def prepare(self, picture: Image | Prepared) -> Prepared:
        """The pixels of a picture, as the encoder takes them."""

    @abstractmethod
    def encode(self, parts: Parts) -> list[int]:
        """The token ids of a prompt of parts, with placeholders where rows of pictures go."""

    @abstractmethod
    def embed_picture(self, picture: Image | Prepared) -> NDArray[np.float32]:
        """The rows of a picture, (rows, width)."""

    @abstractmethod
    def counters(self) -> Counters:
        """What the store of pictures did, and what it holds."""

    @abstractmethod
    def state(self) -> State:
        """The requests and the sequences now, and the tokens so far. Waits for no request."""

    @abstractmethod
    def memory(self) -> BackendMemory:
        """The memory of the weights, the cache and the largest graph, and that of the encoder."""

    @abstractmethod
    def forget(self) -> None:
        """Wait until no request runs, then empty the cache, and the store of pictures."""

    @abstractmethod
    def close(self) -> None:
        """End all requests and free everything. Closing again does nothing."""
