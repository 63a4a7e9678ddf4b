"""Trains a small Whisper on words that espeak-ng speaks, and writes it as a folder of transformers, in f16.

Needs espeak-ng, PyTorch, tokenizers and safetensors: apt install espeak-ng; pip install torch tokenizers safetensors
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np
import training_command
from tiny_whisper.answers import answers
from tiny_whisper.speech import Phrase, Sound, noisy, phrases, spoken_sound, word_errors, write_wav
from training_command import show

import backbay

NAME = "backbay-tiny-whisper"
SHIPPED = Path(__file__).parent / "models" / NAME
NOISES = {"quiet": None, "noise at 20 dB": 20.0, "noise at 10 dB": 10.0}  # below the power of speech


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


def heard(phrase: Phrase, decibels: float | None, seed: int) -> Sound:
    """A phrase between silences, with noise."""
    sound = np.pad(phrase.sound, (4000, 4000)).astype(np.float32) / 32768
    return sound if decibels is None else noisy(sound, decibels, np.random.default_rng(seed))


def score(folder: Path, backends: Sequence[str], count: int) -> None:
    """Word error rates in voices that training never hears."""
    spoken = phrases(Random("unseen"), count, unseen=True)
    said = sum(len(phrase.words) for phrase in spoken)
    columns: dict[str, dict[str, float]] = {}
    for backend in backends:
        started, columns[backend] = time.perf_counter(), dict.fromkeys(NOISES, 0.0)
        with answers(folder, backend) as answer:
            for name, decibels in NOISES.items():
                texts = [answer(heard(phrase, decibels, seed)) for seed, phrase in enumerate(spoken)]
                pairs = zip(spoken, texts, strict=True)
                wrong = sum(word_errors(phrase.words, text.split()) for phrase, text in pairs)
                columns[backend][name] = wrong / said
        seconds = time.perf_counter() - started
        print(f"{backend}: {len(NOISES) * count} phrases in {seconds:.0f} s", flush=True)
    show(f"Word error rates, of {said} words in unseen voices", columns, NOISES)


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
