"""Write a GGUF file with its weights in another dtype."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from backbay.discovery import open_model

from .writing_files import add_output, write


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help="a GGUF file; of a split model, any of its files")
    add_output(parser, "q4_k_m")


def run(args: Namespace) -> int:
    with open_model(args.model) as model:
        return write(args, model, Path(args.output))
