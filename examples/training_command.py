"""What the commands that train have in common: their options, a run with a progress bar, and tables of results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from training_run import Progress, TrainingRun

# Threads that wait must not take the cores from those that work; read when PyTorch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def parser_of(
    description: str, name: str, *, steps: int, minutes: float, time: str = ""
) -> argparse.ArgumentParser:
    """The options of a command; `time` says which minutes count."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(name), help="folder to write into")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument(
        "--minutes", type=float, default=minutes, help=f"{time}end here even if steps are left"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in the folder")
    parser.add_argument(
        "--backend", action="append", help="what answers: a backend's name (all that are installed) or torch"
    )
    return parser


def train(training: TrainingRun[Any, Any], options: argparse.Namespace, tasks: Collection[str]) -> None:
    """Train, with checkpoints in the folder of the options."""
    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    if options.resume:
        training.resume(checkpoint)
    parameters = sum(weight.numel() for weight in training.model.parameters())
    print(f"{parameters / 1e6:.2f} million parameters, {len(tasks)} tasks, seed {options.seed}", flush=True)
    training.run(report_progress, checkpoint)
    print(f"{training.step} steps in {training.spent / 60:.1f} minutes ({training.cpu / 60:.1f} of CPU time)")


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


def show(title: str, columns: Mapping[str, Mapping[str, float]], tasks: Collection[str]) -> None:
    """Accuracy by task, a column for each way of answering."""
    name, width = max(map(len, tasks)) + 1, max(9, *map(len, columns)) + 2
    print(f"\n{title}")
    print(f"{'task':<{name}}" + "".join(f"{column:>{width}}" for column in columns))
    for task in tasks:
        print(f"{task:<{name}}" + "".join(f"{scores[task]:>{width}.1%}" for scores in columns.values()))
    means = [sum(scores.values()) / len(scores) for scores in columns.values()]
    print(f"{'mean':<{name}}" + "".join(f"{mean:>{width}.1%}" for mean in means))
