"""Write a model's forward pass and weights in the format of the backend's own engine, such as ONNX."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from backbay import OptionError
from backbay.cli import add_json, folder_to_write, say, say_json
from backbay.internals import human_bytes

from ..arguments import LARGEST_BATCH
from ..steps.step import prompt_step
from .model_arguments import add_backend_arguments, add_model_arguments, add_number_arguments, open_model


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser)
    add, folder = parser.add_argument, "the folder to write to"
    add("-o", "--output", required=True, type=folder_to_write, metavar="FOLDER", help=folder)
    add_number_arguments(parser, [("tokens", 1, LARGEST_BATCH, "tokens of the exported step")], tokens=1)
    add("--portable", action="store_true", help="standard ops alone, for other engines than the backend's")
    add("--force", action="store_true", help="write into a folder that holds files")
    add_json(parser)


def run(args: Namespace) -> int:
    if not args.force and Path(args.output).is_dir() and any(Path(args.output).iterdir()):
        remedy = "take another folder, or --force to replace an older export"
        raise OptionError(f"{args.output} holds files; {remedy}")
    if args.portable:
        args.option = [*args.option, "exports=standard"]
    with open_model(args, args.backend) as llm:
        step = prompt_step(np.array(llm.encode([0] * args.tokens), np.int32))
        with llm.step_cache.traced(step) as traced:
            batch = traced.batch
            names = {"tokens": batch.tokens, "positions": batch.positions, "outputs": batch.outputs}
            names |= {"result": traced.result, **(traced.bound.named() if traced.bound is not None else {})}
            path = traced.ctx.export(args.output, names)
    files = {str(file): file.stat().st_size for file in sorted(Path(args.output).iterdir()) if file.is_file()}
    if args.json:
        say_json({"model": str(path), "files": files})
    else:
        for file, size in files.items():
            say(f"{file}: {human_bytes(size)}")
        say(f"open {path}")
    return 0
