"""Trains a small model that answers questions about small pictures, and writes it as GGUF: a text and a projector.

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
from training_command import show
from vision_answers import answers
from vision_tasks import TASKS, unseen_questions

import backbay

DESCRIPTION = (
    "Answers questions about pictures of examples/vision_tasks.py, such as: How many shapes are there?"
)
MODELS = Path(__file__).parent / "models"
TEXT, PROJECTOR = "backbay-tiny-vision-f16.gguf", "mmproj-backbay-tiny-vision-f16.gguf"


def train(options: argparse.Namespace) -> None:
    from tiny_gguf import write_gguf
    from tiny_vision import MEAN, STD, VisionShape
    from vision_gguf import CHAT_TEMPLATE, write_projector
    from vision_training import Training

    training = Training(VisionShape(), options.steps, options.minutes, options.seed)
    training_command.train(training, options, TASKS)
    shape, model = asdict(training.model.shape), training.model
    text, projector = options.out / TEXT, options.out / PROJECTOR
    write_gguf(
        text, "f16", shape["text"], model.text.tensors(), training.text.tokenizer, DESCRIPTION,
        "Backbay Tiny Vision", CHAT_TEMPLATE,
    )  # fmt: skip
    weights = {name: weight.detach().numpy() for name, weight in model.encoder.tensors().items()}
    write_projector(projector, shape, weights, MEAN, STD)
    score(text, projector, ["torch"], options.count)


def score(text: Path, projector: Path, backends: Sequence[str], count: int) -> None:
    """The model writes its answers token by token, as in use."""
    columns = {}
    for backend in backends:
        started, columns[backend] = time.perf_counter(), dict.fromkeys(TASKS, 0.0)
        with answers(text, projector, backend) as answer:
            for task in TASKS:
                for picture, question in unseen_questions(task, count):
                    columns[backend][task] += (answer(picture, question.text) == question.answer) / count
        print(
            f"{backend}: {len(TASKS) * count} questions in {time.perf_counter() - started:.0f} s", flush=True
        )
    show(f"Right answers, of {count} questions about unseen pictures each", columns, TASKS)


def main() -> int:
    parser = training_command.parser_of(
        __doc__ or "", "backbay-tiny-vision", steps=1080, minutes=25, time="of CPU time: "
    )
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="FOLDER",
        nargs="?",
        const=MODELS,
        help="train nothing; ask these models",
    )
    parser.add_argument("--count", type=int, default=100, help="questions of each task")
    options = parser.parse_args()
    if options.evaluate is None:
        train(options)
    else:
        backends = options.backend or sorted(backbay.backends())
        score(options.evaluate / TEXT, options.evaluate / PROJECTOR, backends, options.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
