"""A training run within a given time: learning rate, checkpoints, and going on from one."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import torch
from tokenizers import Tokenizer
from torch import nn

SAVE_EVERY = 60  # seconds


class Text(Protocol):
    """What turns problems into tokens; made of a tokenizer alone."""

    tokenizer: Tokenizer

    def __init__(self, tokenizer: Tokenizer) -> None: ...


ModelT = TypeVar("ModelT", bound=nn.Module)
TextT = TypeVar("TextT", bound=Text)


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    seconds: float
    share: float  # of the whole way, 0 to 1
    loss: float


class TrainingRun(ABC, Generic[ModelT, TextT]):
    """A training run. Equal seeds give equal models, if the steps and not the minutes end it."""

    learning_rate: float
    warm_up: int  # steps
    fall_from: float  # of the whole way: from here the learning rate falls to zero

    def __init__(
        self, make: Callable[[], ModelT], text: TextT, steps: int, minutes: float, seed: int
    ) -> None:
        torch.manual_seed(seed)
        self.model, self.text = make(), text
        self.steps, self.seconds, self.seed = steps, minutes * 60, seed
        self.optimizers = _optimizers(self.model, self.learning_rate)
        self.step, self.spent, self.cpu = 0, 0.0, 0.0

    @property
    @abstractmethod
    def clock(self) -> float:
        """The seconds that count against the minutes: those spent, or those of the processor."""

    @abstractmethod
    def loss(self) -> torch.Tensor:
        """The loss of this step's problems."""

    @property
    def share(self) -> float:
        return min(1.0, max(self.step / self.steps, self.clock / self.seconds))

    def run(self, report: Callable[[Progress], None], checkpoint: Path) -> None:
        """Train until the steps or the minutes are over, whichever comes first."""
        saved = self.spent
        while self.share < 1:
            started, cpu = time.perf_counter(), time.process_time()
            loss = self._learn()
            self.step += 1
            self.spent += time.perf_counter() - started
            self.cpu += time.process_time() - cpu
            if self.spent - saved > SAVE_EVERY or self.share >= 1:
                saved = self.spent
                self.save(checkpoint)
            report(Progress(self.step, self.steps, self.spent, self.share, loss))

    def _learn(self) -> float:
        warm, fall = (self.step + 1) / self.warm_up, (1 - self.share) / (1 - self.fall_from)
        rate = self.learning_rate * min(1, warm, fall)
        for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers):
            group["lr"] = rate
        loss = self.loss()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    def save(self, path: Path) -> None:
        """Save everything needed to continue; a half-written file never replaces a whole one."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "tokenizer": self.text.tokenizer.to_str(),
            "counts": (self.step, self.spent, self.cpu),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.text = type(self.text)(Tokenizer.from_str(state["tokenizer"]))
        self.step, self.spent, self.cpu = state["counts"]


def _optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, which then need half the steps; AdamW for the rest."""
    matrices = model.matrices()
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]
