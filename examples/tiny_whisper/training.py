"""Trains the tiny Whisper on spoken phrases, within a given time of the processor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from training_run import TrainingRun

from .muon import Muon
from .network import Shape, TinyWhisper, mel_of
from .speech import PLAIN, RATE, WORDS, Phrase, phrases, speak
from .vocabulary import Words, make_tokenizer
from .windows import ROWS_A_SECOND, Window, draw_window

WINDOWS = 32  # of one step; twice as many while they are short
PHRASES = 6000  # spoken once, in all
LEARNING_RATE = 3e-3
WARM_UP = 60  # steps
FALL_FROM = 0.3  # of the whole way: from here the learning rate falls to zero
LONG_FROM = 0.5  # and from here windows are as long as they will be; before, half of it
NAMES_SHARE = 0.5  # of the loss is whether rows name their words


class Training(TrainingRun[TinyWhisper, Words]):
    """Seconds of the processor count against the minutes; espeak-ng speaks before they begin."""

    learning_rate, warm_up, fall_from = LEARNING_RATE, WARM_UP, FALL_FROM

    def __init__(self, spoken: Sequence[Phrase], steps: int, minutes: float, seed: int) -> None:
        words = Words(make_tokenizer(Shape.positions))
        shape = Shape(words.tokenizer.get_vocab_size())
        super().__init__(partial(TinyWhisper, shape, len(WORDS)), words, steps, minutes, seed)
        self.optimizers[0] = Muon(self.model.matrices(), self.learning_rate)
        self.lengths = {word: float(len(speak(word, PLAIN))) for word in WORDS}
        self.spoken, self.samples = spoken, shape.positions * RATE // ROWS_A_SECOND

    @property
    def clock(self) -> float:
        return self.cpu

    def loss(self) -> torch.Tensor:
        rng = Random(f"{self.seed} {self.step}")
        times, share = self.step % 3 > 0, 1 if self.share > LONG_FROM else 2
        samples = self.samples // share
        spoken = [each for each in self.spoken if len(each.sound) < samples]
        windows = [draw_window(rng, spoken, samples, cut=times) for _ in range(WINDOWS * share)]
        tokens, targets = map(torch.tensor, self.text.table(windows, times=times))
        mel = mel_of(torch.from_numpy(np.stack([window.sound for window in windows])), self.model.shape.bins)
        rows = self.model.encoder(mel)
        logits = self.model.decoder(rows, tokens)
        text = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
        return (1 - NAMES_SHARE) * text + NAMES_SHARE * self._names_loss(rows, windows)

    def _names_loss(self, rows: torch.Tensor, windows: Sequence[Window]) -> torch.Tensor:
        named = torch.from_numpy(np.stack([window.named(self.lengths) for window in windows]))
        return F.cross_entropy(self.model.names(rows).flatten(0, 1), named.flatten(), ignore_index=-100)


def spoken_phrases(path: Path, seed: int) -> list[Phrase]:
    """The phrases of training, from a file if they were spoken before."""
    if path.exists():
        kept = np.load(path)
        sounds = np.split(kept["sounds"], np.cumsum(kept["lengths"])[:-1])
        return [Phrase(tuple(text.split()), sound) for text, sound in zip(kept["texts"], sounds, strict=True)]
    found = phrases(Random(f"{seed} spoken"), PHRASES, unseen=False)
    np.savez(
        path,
        sounds=np.concatenate([each.sound for each in found]),
        lengths=np.array([len(each.sound) for each in found]),
        texts=np.array([" ".join(each.words) for each in found]),
    )
    return found
