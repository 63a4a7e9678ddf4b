"""Trains tiny_vision on the questions of vision_tasks, within a given time of the processor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from tiny_gguf import BEGIN, END, IMAGE, train_tokenizer
from tiny_vision import TinyVision, VisionShape, pixels_of
from tokenizers import Tokenizer
from training_run import TrainingRun
from vision_tasks import Question, Scene, training_scenes

PICTURES = 32  # of one step
QUESTIONS = 4  # about each of them
LENGTH = 12  # of a question with its answer
LEARNING_RATE = 2e-3
WARM_UP = 50  # steps
FALL_FROM = 0.2  # of the whole way: from here the learning rate falls to zero


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


class Training(TrainingRun[TinyVision, Words]):
    """Seconds of the processor count against the minutes."""

    learning_rate, warm_up, fall_from = LEARNING_RATE, WARM_UP, FALL_FROM

    def __init__(self, shape: VisionShape, steps: int, minutes: float, seed: int) -> None:
        words = Words(make_tokenizer(shape.text.vocabulary))
        known = replace(shape, text=replace(shape.text, vocabulary=words.tokenizer.get_vocab_size()))
        super().__init__(partial(TinyVision, known), words, steps, minutes, seed)
        self.half = bool(torch.cpu.get_capabilities().get("avx512_bf16"))  # elsewhere bfloat16 is slow

    @property
    def clock(self) -> float:
        return self.cpu

    def loss(self) -> torch.Tensor:
        rng = Random(f"{self.seed} {self.step}")
        shown: list[Scene] = list(itertools.islice(training_scenes(rng), PICTURES))
        tokens, targets = self.text.table([rng.choices(scene.questions, k=QUESTIONS) for scene in shown])
        pixels = pixels_of(np.stack([scene.picture for scene in shown]))
        learned = targets != -100
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            hidden = self.model.hidden(pixels, self.text.before(self.step % 4 > 0), tokens)[learned]
            logits = F.linear(hidden, self.model.text.token_embd)
        return F.cross_entropy(logits.float(), targets[learned])
