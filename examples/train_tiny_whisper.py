"""Trains a small Whisper on words that espeak-ng speaks, and writes it as a folder of transformers, in f16.

Needs espeak-ng, PyTorch, tokenizers and safetensors: apt install espeak-ng; pip install torch tokenizers safetensors
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np
import training_command
from tiny_whisper.answers import answers
from tiny_whisper.speech import (
    RATE,
    WINDOW,
    Phrase,
    Sound,
    noisy,
    phrases,
    spoken_sound,
    word_errors,
    write_wav,
)
from training_command import show

import backbay

NAME = "backbay-tiny-whisper"
SHIPPED = Path(__file__).parent / "models" / NAME
NOISES = {"quiet": None, "noise at 20 dB": 20.0, "noise at 10 dB": 10.0}  # below the power of speech
SEVERAL = "several in a window"
GAP, AROUND = 6400, 4000  # samples of silence between phrases, and around them


def train(options: argparse.Namespace) -> None:
    from tiny_whisper.folder import write_folder
    from tiny_whisper.training import Training, spoken_phrases

    options.out.mkdir(parents=True, exist_ok=True)
    spoken = spoken_phrases(options.out / "speech.npz", options.seed)
    training = Training(spoken, options.steps, options.minutes, options.seed)
    training_command.train(training, options, ["transcribe"])
    write_wav(options.out / "spoken.wav", spoken_sound())
    tensors = {name: weight.numpy() for name, weight in training.model.tensors().items()}
    write_folder(options.out / NAME, asdict(training.model.shape), tensors, training.text.tokenizer)
    score(options.out / NAME, ["torch"], options.count)


def heard(together: Sequence[Phrase], decibels: float | None, seed: int) -> Sound:
    """Phrases with silence between and around them, and with noise."""
    parts = [np.pad(phrase.sound, (GAP, 0)) for phrase in together]
    sound = np.pad(np.concatenate(parts)[GAP:], AROUND).astype(np.float32) / 32768
    return sound if decibels is None else noisy(sound, decibels, np.random.default_rng(seed))


def windows_of(spoken: Sequence[Phrase]) -> Iterator[list[Phrase]]:
    """As many of the phrases, in their order, as a window holds."""
    together, samples = list[Phrase](), 2 * AROUND
    for phrase in spoken:
        samples += len(phrase.sound) + GAP
        if together and samples - GAP > WINDOW * RATE:
            yield together
            together, samples = [], 2 * AROUND + len(phrase.sound) + GAP
        together.append(phrase)
    yield together


def score(folder: Path, backends: Sequence[str], count: int) -> None:
    """Word error rates in voices that training never hears."""
    spoken = phrases(Random("unseen"), count, unseen=True)
    said = sum(len(phrase.words) for phrase in spoken)
    cases = {name: (decibels, [[phrase] for phrase in spoken]) for name, decibels in NOISES.items()}
    cases[SEVERAL] = None, [*windows_of(spoken)]
    columns: dict[str, dict[str, float]] = {}
    for backend in backends:
        started, columns[backend] = time.perf_counter(), {}
        with answers(folder, backend) as answer:
            for name, (decibels, windows) in cases.items():
                texts = [answer(heard(each, decibels, seed)) for seed, each in enumerate(windows)]
                wrong = sum(
                    word_errors([word for phrase in each for word in phrase.words], text.split())
                    for each, text in zip(windows, texts, strict=True)
                )
                columns[backend][name] = wrong / said
        seconds = time.perf_counter() - started
        print(
            f"{backend}: {sum(len(each) for _, each in cases.values())} windows in {seconds:.0f} s",
            flush=True,
        )
    show(f"Word error rates, of {said} words in unseen voices", columns, cases)


def main() -> int:
    parser = training_command.parser_of(__doc__ or "", NAME, steps=4000, minutes=25, time="of CPU time: ")
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="FOLDER",
        nargs="?",
        const=SHIPPED,
        help="train nothing; let this model hear",
    )
    parser.add_argument("--count", type=int, default=200, help="phrases to hear")
    options = parser.parse_args()
    try:
        if options.evaluate is None:
            train(options)
        else:
            score(options.evaluate, options.backend or sorted(backbay.backends()), options.count)
    except FileNotFoundError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
