"""Trains tiny_llama on the problems of tiny_tasks, within a given time."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

# Threads that wait must not take the cores from those that work; read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F
from tiny_gguf import BEGIN, END, train_tokenizer
from tiny_llama import Shape, TinyLlama
from tiny_tasks import TASKS, Problem, training_problems, unseen_problems
from tokenizers import Tokenizer

TOKENS_PER_STEP = 2048
LEARNING_RATE = 3e-3
WARM_UP = 100  # steps
FALL_FROM = 0.4  # of the whole way: from here the learning rate falls to zero
ROUND_FROM = 0.6  # and from here every other step sees the weights as q4_0 will have them
LONG_FROM = 0.6  # and rows are as long as the context
SAVE_EVERY = 60  # seconds


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


@dataclass(frozen=True)
class Progress:
    step: int
    steps: int
    seconds: float
    share: float  # of the whole way, 0 to 1
    loss: float


class Training:
    """A training run. Equal seeds give equal models, if the steps and not the minutes end it."""

    def __init__(self, shape: Shape, steps: int, minutes: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.steps, self.seconds, self.seed = steps, minutes * 60, seed
        self.text = Text(make_tokenizer(shape.vocabulary))
        self.model = TinyLlama(shape)
        self.optimizers = _optimizers(self.model)
        self.step, self.spent, self.cpu = 0, 0.0, 0.0
        self.half = bool(torch.cpu.get_capabilities().get("amx_bf16"))  # bfloat16 is fast only there

    @property
    def share(self) -> float:
        return min(1.0, max(self.step / self.steps, self.spent / self.seconds))

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
        self.model.round(False)

    def _learn(self) -> float:
        share, shape = self.share, self.model.shape
        rate = LEARNING_RATE * min(1, (self.step + 1) / WARM_UP, (1 - share) / (1 - FALL_FROM))
        for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers):
            group["lr"] = rate
        self.model.round(share > ROUND_FROM and self.step % 2 == 0)
        length = shape.context if share > LONG_FROM else shape.context // 2
        batch = self.text.pack(Random(f"{self.seed} {self.step}"), TOKENS_PER_STEP // length, length)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = loss_of(self.model, batch)
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
        self.text = Text(Tokenizer.from_str(state["tokenizer"]))
        self.step, self.spent, self.cpu = state["counts"]


def _optimizers(model: TinyLlama) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, which then need half the steps; AdamW for the rest."""
    matrices = model.matrices()
    chosen = {id(weight) for weight in matrices}
    rest = [weight for weight in model.parameters() if id(weight) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
    ]
