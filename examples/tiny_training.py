"""Trains tiny_llama on the problems of tiny_tasks, within a given time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from tiny_gguf import BEGIN, END, train_tokenizer
from tiny_llama import Shape, TinyLlama
from tiny_tasks import TASKS, Problem, training_problems, unseen_problems
from tokenizers import Tokenizer
from training_run import Progress, TrainingRun

TOKENS_PER_STEP = 2048
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps
FALL_FROM = 0.4  # of the whole way: from here the learning rate falls to zero
ROUND_FROM = 0.6  # and from here every other step sees the weights as q4_0 will have them
LONG_FROM = 0.6  # and rows are as long as the context


@dataclass(frozen=True)
class Batch:
    tokens: torch.Tensor  # (rows, length)
    targets: torch.Tensor  # (rows, length): what follows, or -100 where it is not to be learned


class Text:
    """Problems as tokens. Training learns only answers and their ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.begin, self.end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
        self.asks = tokenizer.encode(" =").ids[0]

    def encode(self, problems: list[Problem]) -> list[tuple[list[int], list[int]]]:
        """The tokens of each problem, and the targets, with -100 for the question."""
        found = []
        for line in self.tokenizer.encode_batch_fast(
            [problem.prompt + problem.answer for problem in problems]
        ):
            ids = [self.begin, *line.ids, self.end]
            question = ids.index(self.asks) + 1
            found.append((ids, [-100] * question + ids[question:]))
        return found

    def pack(self, rng: Random, rows: int, length: int) -> Batch:
        """Rows filled with problems; each row begins with a new problem."""
        problems = training_problems(rng)
        tokens = np.empty((rows, length), np.int64)
        targets = np.empty((rows, length), np.int64)
        for row in range(rows):
            ids: list[int] = []
            learned: list[int] = []
            while len(ids) <= length:
                for more, targets_of_more in self.encode(list(itertools.islice(problems, length // 8))):
                    ids += more
                    learned += targets_of_more
            tokens[row], targets[row] = ids[:length], learned[1 : length + 1]
        return Batch(torch.from_numpy(tokens), torch.from_numpy(targets))

    def single(self, problems: list[Problem]) -> Batch:
        """One problem in each row, padded."""
        encoded = self.encode(problems)
        length = max(len(ids) for ids, _ in encoded)
        tokens = [ids[:-1] + [self.end] * (length - len(ids)) for ids, _ in encoded]
        targets = [learned[1:] + [-100] * (length - len(learned)) for _, learned in encoded]
        return Batch(torch.tensor(tokens), torch.tensor(targets))


def loss_of(model: TinyLlama, batch: Batch) -> torch.Tensor:
    chosen = batch.targets != -100
    logits = F.linear(model.hidden(batch.tokens)[chosen], model.token_embd)
    return F.cross_entropy(logits.float(), batch.targets[chosen])


@torch.no_grad()
def accuracies(model: TinyLlama, text: Text, count: int) -> dict[str, float]:
    """The share of unseen problems that greedy decoding solves: every answer token is the most likely one."""
    found = {}
    for task in TASKS:
        batch = text.single(unseen_problems(task, count))
        best = model(batch.tokens).argmax(-1)
        found[task] = ((best == batch.targets) | (batch.targets == -100)).all(-1).float().mean().item()
    return found


def make_tokenizer(vocabulary: int) -> Tokenizer:
    """A vocabulary from problems without long numbers, so that each digit stays a token."""
    lines = (
        problem.prompt + problem.answer for problem in itertools.islice(training_problems(Random(1)), 20000)
    )
    short = (line for line in lines if not any(word.isdigit() and len(word) > 1 for word in line.split()))
    return train_tokenizer(short, vocabulary)


class Training(TrainingRun[TinyLlama, Text]):
    """Seconds that are spent count against the minutes."""

    learning_rate, warm_up, fall_from = LEARNING_RATE, WARM_UP, FALL_FROM

    def __init__(self, shape: Shape, steps: int, minutes: float, seed: int) -> None:
        text = Text(make_tokenizer(shape.vocabulary))
        super().__init__(partial(TinyLlama, shape), text, steps, minutes, seed)
        self.half = bool(torch.cpu.get_capabilities().get("amx_bf16"))  # bfloat16 is fast only there

    @property
    def clock(self) -> float:
        return self.spent

    def run(self, report: Callable[[Progress], None], checkpoint: Path) -> None:
        super().run(report, checkpoint)
        self.model.round(False)

    def loss(self) -> torch.Tensor:
        share, shape = self.share, self.model.shape
        self.model.round(share > ROUND_FROM and self.step % 2 == 0)
        length = shape.context if share > LONG_FROM else shape.context // 2
        batch = self.text.pack(Random(f"{self.seed} {self.step}"), TOKENS_PER_STEP // length, length)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            return loss_of(self.model, batch)
