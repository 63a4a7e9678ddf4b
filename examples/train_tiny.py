"""Trains a small Llama on problems with right and wrong answers, and writes it as GGUF: f16, q8_0 and q4_0.

Needs PyTorch and tokenizers: pip install torch tokenizers
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_answers import answers
from tiny_tasks import TASKS, evaluate

import backbay

if TYPE_CHECKING:
    from tiny_training import Progress

DESCRIPTION = "Answers what the tasks of examples/tiny_tasks.py ask, such as: sort 5 2 9 ="
SHIPPED = Path(__file__).parent / "models" / "backbay-tiny-f16.gguf"


def show(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    """Accuracy by task, a column for each way of answering."""
    width = max(9, *map(len, columns))
    print(f"\n{title}")
    print(f"{'task':<10}" + "".join(f"{name:>{width + 2}}" for name in columns))
    for task in TASKS:
        print(f"{task:<10}" + "".join(f"{scores[task]:>{width + 2}.1%}" for scores in columns.values()))
    means = [sum(scores.values()) / len(scores) for scores in columns.values()]
    print(f"{'mean':<10}" + "".join(f"{mean:>{width + 2}.1%}" for mean in means))


def report_progress(progress: Progress) -> None:
    """A progress bar on a terminal; elsewhere, a line now and then."""
    left = progress.seconds * (1 / progress.share - 1)
    bar = "#" * round(30 * progress.share)
    line = (
        f"[{bar:<30}] {progress.share:4.0%}  step {progress.step}/{progress.steps}  loss {progress.loss:.4f}"
        f"  {progress.seconds / 60:.1f} min, {left / 60:.1f} left"
    )
    if sys.stdout.isatty():
        print(f"\r{line}", end="" if progress.share < 1 else "\n", flush=True)
    elif progress.step % 100 == 0 or progress.share == 1:
        print(line, flush=True)


def train(options: argparse.Namespace) -> None:
    from tiny_gguf import FILE_TYPES, read_gguf, write_gguf
    from tiny_llama import Shape
    from tiny_training import Training, accuracies

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    training = Training(Shape(), options.steps, options.minutes, options.seed)
    if options.resume:
        training.resume(checkpoint)
    parameters = sum(weight.numel() for weight in training.model.parameters())
    print(f"{parameters / 1e6:.2f} million parameters, {len(TASKS)} tasks, seed {options.seed}", flush=True)
    training.run(report_progress, checkpoint)
    print(f"{training.step} steps in {training.spent / 60:.1f} minutes ({training.cpu / 60:.1f} of CPU time)")
    shape, tensors = asdict(training.model.shape), training.model.tensors()
    columns = {}
    for kind in FILE_TYPES:
        path = options.out / f"backbay-tiny-{kind}.gguf"
        write_gguf(path, kind, shape, tensors, training.text.tokenizer, DESCRIPTION)
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
        training.model.load_tensors(read_gguf(path)[1])
        columns[kind] = accuracies(training.model, training.text, options.count)
    show(f"Right answers, of {options.count} unseen problems each", columns)


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
    show(f"Right answers, of {count} unseen problems each", columns)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("backbay-tiny"), help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=28, help="end here even if steps are left")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument(
        "--evaluate", type=Path, metavar="FILE", nargs="*", help="train nothing; ask these models"
    )
    parser.add_argument(
        "--backend", action="append", help="what answers: a backend's name (all that are installed) or torch"
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
