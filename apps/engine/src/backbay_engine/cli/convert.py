"""Convert a folder of Hugging Face's transformers to a GGUF file."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from backbay import OptionError
from backbay.discovery import open_model

from .quantize import add_output_arguments, write_quantized


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="FOLDER",
        help="a folder with config.json and safetensors, or a name such as hf:org/name",
    )
    add_output_arguments(parser, "f16")


def run(args: Namespace) -> int:
    with open_model(args.model) as model:
        if model.version:
            raise OptionError(f"{args.model} is a GGUF file already; `backbay quantize` changes its dtypes")
        return write_quantized(args, model)
