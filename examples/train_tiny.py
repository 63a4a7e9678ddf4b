"""Trains a small Llama on problems with right and wrong answers, and writes it as GGUF: f16, q8_0 and q4_0.

Needs PyTorch and tokenizers: pip install torch tokenizers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import training_command
from tiny_answers import answers
from tiny_tasks import TASKS, evaluate
from training_command import show

import backbay

DESCRIPTION = "Answers what the tasks of examples/tiny_tasks.py ask, such as: sort 5 2 9 ="
SHIPPED = Path(__file__).parent / "models" / "backbay-tiny-f16.gguf"


def train(options: argparse.Namespace) -> None:
    from tiny_gguf import FILE_TYPES, read_gguf, write_gguf
    from tiny_llama import Shape
    from tiny_training import Training, accuracies

    training = Training(Shape(), options.steps, options.minutes, options.seed)
    training_command.train(training, options, TASKS)
    shape, tensors = asdict(training.model.shape), training.model.tensors()
    columns = {}
    for kind in FILE_TYPES:
        path = options.out / f"backbay-tiny-{kind}.gguf"
        write_gguf(path, kind, shape, tensors, training.text.tokenizer, DESCRIPTION)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
        training.model.load_tensors(read_gguf(path)[1])
        columns[kind] = accuracies(training.model, training.text, options.count)
    show(f"Right answers, of {options.count} unseen problems each", columns, TASKS)


def score(paths: Sequence[Path], backends: Sequence[str], count: int) -> None:
    """The model writes its answers token by token, as in use."""
    columns = {}
    for path in paths:
        for backend in backends:
            started = time.perf_counter()
            with answers(path, backend) as answer:
                scores = evaluate(answer, count)
            name = f"{backend} {path.stem.rpartition('-')[2]}"
            columns[name] = {score.task: score.accuracy for score in scores}
            asked, seconds = sum(score.total for score in scores), time.perf_counter() - started
            print(f"{name}: {asked} problems in {seconds:.0f} s", flush=True)
    show(f"Right answers, of {count} unseen problems each", columns, TASKS)


def main() -> int:
    parser = training_command.parser_of(__doc__ or "", "backbay-tiny", steps=4000, minutes=28)
    parser.add_argument(
        "--evaluate", type=Path, metavar="FILE", nargs="*", help="train nothing; ask these models"
    )
    parser.add_argument("--count", type=int, default=100, help="problems of each task")
    options = parser.parse_args()
    if options.evaluate is None:
        train(options)
    else:
        backends = options.backend or sorted(backbay.backends())
        score(options.evaluate or [SHIPPED], backends, options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
