"""Write a model's forward pass and weights as a model that the engine behind a backend runs by itself."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from backbay.cli import add_json, folder_to_write, say, say_json, whole
from backbay.plugin import human_bytes

from ..arguments import LARGEST_BATCH
from ..steps.builders import prompt_step
from .opening import add_backend, add_model, open_model


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_backend(parser)
    parser.add_argument(
        "-o", "--output", required=True, type=folder_to_write, metavar="FOLDER", help="where to write it"
    )
    parser.add_argument(
        "--tokens",
        type=whole(1, LARGEST_BATCH),
        default=1,
        metavar="N",
        help="of the step that is written (1)",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    with open_model(args, args.backend) as llm:
        step = prompt_step(np.array(llm.encode([0] * args.tokens), np.int32))
        with llm.step_cache.traced(step) as kept:
            batch = kept.batch
            names = {"tokens": batch.tokens, "positions": batch.positions, "outputs": batch.outputs}
            names |= {"result": kept.result, **(kept.bound.named() if kept.bound is not None else {})}
            path = kept.ctx.export(args.output, names)
    files = {str(file): file.stat().st_size for file in sorted(Path(args.output).iterdir()) if file.is_file()}
    if args.json:
        say_json({"model": str(path), "files": files})
    else:
        for file, size in files.items():
            say(f"{file}: {human_bytes(size)}")
        say(f"open {path}")
    return 0
