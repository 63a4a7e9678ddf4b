"""Trains a small model that answers questions about small pictures, and writes it as GGUF: a text and a projector.

Needs PyTorch and tokenizers: pip install torch tokenizers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from train_tiny import report_progress
from vision_answers import answers
from vision_tasks import TASKS, unseen_questions

import backbay

DESCRIPTION = (
    "Answers questions about pictures of examples/vision_tasks.py, such as: How many shapes are there?"
)
MODELS = Path(__file__).parent / "models"
TEXT, PROJECTOR = "backbay-tiny-vision-f16.gguf", "mmproj-backbay-tiny-vision-f16.gguf"


def show(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Accuracy by task, a column for each way of answering."""
    print(f"\n{title}")
    print(f"{'task':<12}" + "".join(f"{name:>10}" for name in columns))
    for task in TASKS:
        print(f"{task:<12}" + "".join(f"{scores[task]:>10.1%}" for scores in columns.values()))
    means = [sum(scores.values()) / len(scores) for scores in columns.values()]
    print(f"{'mean':<12}" + "".join(f"{mean:>10.1%}" for mean in means))


def train(options: argparse.Namespace) -> None:
    from tiny_gguf import write_gguf
    from tiny_vision import MEAN, STD, VisionShape
    from vision_gguf import CHAT_TEMPLATE, write_projector
    from vision_training import Training

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    training = Training(VisionShape(), options.steps, options.minutes, options.seed)
    if options.resume:
        training.resume(checkpoint)
    parameters = sum(weight.numel() for weight in training.model.parameters())
    print(f"{parameters / 1e6:.2f} million parameters, {len(TASKS)} tasks, seed {options.seed}", flush=True)
    training.run(report_progress, checkpoint)
    print(f"{training.step} steps in {training.spent / 60:.1f} minutes ({training.cpu / 60:.1f} of CPU time)")
    shape, model = asdict(training.model.shape), training.model
    text, projector = options.out / TEXT, options.out / PROJECTOR
    write_gguf(
        text, "f16", shape["text"], model.text.tensors(), training.words.tokenizer, DESCRIPTION,
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
    show(f"Right answers, of {count} questions about unseen pictures each", columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("backbay-tiny-vision"), help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1080)
    parser.add_argument(
        "--minutes", type=float, default=25, help="of CPU time: end here even if steps are left"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument(
        "--evaluate",
        type=Path,
        metavar="FOLDER",
        nargs="?",
        const=MODELS,
        help="train nothing; ask these models",
    )
    parser.add_argument(
        "--backend", action="append", help="what answers: a backend's name (all that are installed) or torch"
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
