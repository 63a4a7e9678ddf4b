"""Trains tiny_vision on the questions of vision_tasks, within a given time of the processor."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

# Threads that wait must not take the cores from those that work; read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
import torch.nn.functional as F
from tiny_gguf import BEGIN, END, IMAGE, train_tokenizer
from tiny_training import Progress
from tiny_vision import TinyVision, VisionShape, pixels_of
from tokenizers import Tokenizer
from vision_tasks import TASKS, Question, Scene, training_scenes, unseen_questions

PICTURES = 32  # of one step
QUESTIONS = 4  # about each of them
LENGTH = 12  # of a question with its answer
LEARNING_RATE = 2e-3
WARM_UP = 50  # steps
FALL_FROM = 0.2  # of the whole way: from here the learning rate falls to zero
SAVE_EVERY = 60  # seconds


class Words:
    """Questions as tokens. Training learns only answers and their ends."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.begin, self.end = tokenizer.token_to_id(BEGIN), tokenizer.token_to_id(END)
        self._known: dict[Question, tuple[list[int], list[int]]] = {}

    def row(self, question: Question) -> tuple[list[int], list[int]]:
        """The tokens of a question with its answer, and the targets, with -100 for all but the answer."""
        if question not in self._known:
            asked = self.tokenizer.encode(question.text).ids
            told = [*self.tokenizer.encode(" " + question.answer).ids, self.end]
            empty = LENGTH + 1 - len(asked) - len(told)
            ids = [*asked, *told, *[self.end] * empty]
            targets = [*[-100] * (len(asked) - 1), *told, *[-100] * empty]
            self._known[question] = ids[:LENGTH], targets
        return self._known[question]

    def table(self, questions: Sequence[Sequence[Question]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and targets, (pictures, questions, length)."""
        rows = [[self.row(question) for question in asked] for asked in questions]
        return torch.tensor([[row[0] for row in each] for each in rows]), torch.tensor(
            [[row[1] for row in each] for each in rows]
        )

    def before(self, whole: bool) -> torch.Tensor:
        """The tokens before a picture: a text begins with one, a prompt that begins with a picture has none."""
        return torch.tensor([self.begin] if whole else [], dtype=torch.long)


def make_tokenizer(most: int) -> Tokenizer:
    """A vocabulary of the questions and answers, of at most so many tokens, in which each digit is one."""
    found = itertools.islice(training_scenes(Random(1)), 3000)
    lines = (f"{each.text} {each.answer}" for scene in found for each in scene.questions)
    return train_tokenizer((line.rstrip("0123456789") for line in lines), most, (BEGIN, END, IMAGE))


@torch.no_grad()
def accuracies(model: TinyVision, words: Words, count: int) -> dict[str, float]:
    """The share of right answers about unseen pictures: every token of an answer is the most likely one."""
    found = {}
    for task in TASKS:
        asked = unseen_questions(task, count)
        pixels = pixels_of(np.stack([picture for picture, _ in asked]))
        tokens, targets = words.table([[question] for _, question in asked])
        best = model.logits(pixels, words.before(whole=True), tokens).argmax(-1)
        found[task] = ((best == targets) | (targets == -100)).all(-1).float().mean().item()
    return found


class Training:
    """A training run. Equal seeds give equal models, if the steps and not the minutes end it."""

    def __init__(self, shape: VisionShape, steps: int, minutes: float, seed: int) -> None:
        torch.manual_seed(seed)
        self.steps, self.seconds, self.seed = steps, minutes * 60, seed
        self.words = Words(make_tokenizer(shape.text.vocabulary))
        known = self.words.tokenizer.get_vocab_size()
        self.model = TinyVision(replace(shape, text=replace(shape.text, vocabulary=known)))
        matrices = self.model.matrices()
        chosen = {id(weight) for weight in matrices}
        rest = [weight for weight in self.model.parameters() if id(weight) not in chosen]
        self.optimizers = [
            torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.step, self.spent, self.cpu = 0, 0.0, 0.0
        self.half = bool(torch.cpu.get_capabilities().get("avx512_bf16"))  # elsewhere bfloat16 is slow

    @property
    def share(self) -> float:
        return min(1.0, max(self.step / self.steps, self.cpu / self.seconds))

    def run(self, report: Callable[[Progress], None], checkpoint: Path) -> None:
        """Train until the steps or the minutes of CPU time are over, whichever comes first."""
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
        rate = LEARNING_RATE * min(1, (self.step + 1) / WARM_UP, (1 - self.share) / (1 - FALL_FROM))
        for group in itertools.chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers):
            group["lr"] = rate
        rng = Random(f"{self.seed} {self.step}")
        shown: list[Scene] = list(itertools.islice(training_scenes(rng), PICTURES))
        tokens, targets = self.words.table([rng.choices(scene.questions, k=QUESTIONS) for scene in shown])
        pixels = pixels_of(np.stack([scene.picture for scene in shown]))
        learned = targets != -100
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            hidden = self.model.hidden(pixels, self.words.before(self.step % 4 > 0), tokens)[learned]
            logits = F.linear(hidden, self.model.text.token_embd)
        loss = F.cross_entropy(logits.float(), targets[learned])
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
            "tokenizer": self.words.tokenizer.to_str(),
            "counts": (self.step, self.spent, self.cpu),
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def resume(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)
        self.words = Words(Tokenizer.from_str(state["tokenizer"]))
        self.step, self.spent, self.cpu = state["counts"]
