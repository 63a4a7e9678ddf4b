"""Convert a folder of Hugging Face's transformers to GGUF files."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from backbay import OptionError
from backbay.cli import file_to_write

from ..writing import Conversion
from .quantize import add_output_arguments, say_outputs, writing


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="FOLDER",
        help="a folder with config.json and safetensors, or a name such as hf:org/name",
    )
    add_output_arguments(parser, "f16")
    projector = (
        "the file for the encoder of a model that sees or hears (mmproj- and the text's name, beside it)"
    )
    parser.add_argument("--mmproj", type=file_to_write, metavar="FILE", help=projector)


def run(args: Namespace) -> int:
    target, projector = (None if given is None else Path(given) for given in (args.output, args.mmproj))
    with Conversion(args.model, target, args.dtype, projector) as conversion:
        if any(output.model.version for output in conversion.outputs):
            raise OptionError(f"{args.model} is a GGUF file already; `backbay quantize` changes its dtypes")
        with writing() as show:
            found = conversion.write(force=args.force, progress=show)
        say_outputs(args, conversion.outputs, found)
    return 0
