"""Write a GGUF file with its weights in another dtype."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from backbay import DType
from backbay.cli import add_json, file_to_write, say, say_json, table
from backbay.discovery import open_model
from backbay.gguf import ModelFile
from backbay.internals import human_bytes

from ..checkpoints.model_stores import name_of
from ..writing import RECIPES, Output, QuantizationRecipe, write_models
from .model_arguments import ProgressBar, set_up_logging

BLOCK = 256  # numbers of a block of k-quants


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="FILE", help="a GGUF file; of a split model, any of its files")
    add_output_arguments(parser, "q4_k_m")


def run(args: Namespace) -> int:
    target = Path(args.output or f"{name_of(args.model)}-{args.dtype}.gguf")
    with open_model(args.model) as model:
        outputs = [Output(model, target, RECIPES[args.dtype])]
        with writing() as show:
            found = write_models(outputs, force=args.force, progress=show)
        say_outputs(args, outputs, found)
    return 0


def add_output_arguments(parser: ArgumentParser, default: str) -> None:
    add = parser.add_argument
    file = "the file to write (the model's name and the dtype, NAME-DTYPE.gguf, in the current folder)"
    add("-o", "--output", type=file_to_write, metavar="FILE", help=file)
    dtype = f"the dtype of most weights; those that matter more get more bits ({default})"
    add("--dtype", type=str.lower, choices=tuple(RECIPES), default=default, help=dtype)
    add("--force", action="store_true", help="replace the file if it exists")
    add_json(parser)


@contextmanager
def writing() -> Iterator[Callable[[float], None]]:
    """The bar that shows what part is written."""
    set_up_logging("text")
    with ProgressBar(sys.stderr, "writing") as bar:
        yield bar.show


def say_outputs(args: Namespace, outputs: Sequence[Output], found: Mapping[str, int]) -> None:
    """Say what was written: the bytes of the weights by dtype, and each file."""
    sizes = {str(output.target): output.target.stat().st_size for output in outputs}
    (file, nbytes), *further = sizes.items()
    if args.json:
        said = {"file": file, "nbytes": nbytes, "dtype": args.dtype, "weights": found}
        beside = [{"file": name, "nbytes": size} for name, size in further]
        say_json(said | ({"projector": beside[0]} if beside else {}))
        return
    rows = [(name, human_bytes(nbytes)) for name, nbytes in found.items()]
    say(table(("dtype", "weights"), rows, right=(1,)))
    if narrow := narrow_dtypes(outputs[0].model, outputs[0].recipe):
        why = (
            f"rows of weights that are no multiple of {BLOCK} numbers, which the blocks of {args.dtype} need"
        )
        say(f"{' and '.join(narrow)}: {why}")
    for name, size in sizes.items():
        say(f"{name}: {human_bytes(size)}")


def narrow_dtypes(model: ModelFile, recipe: QuantizationRecipe) -> list[str]:
    """The dtypes of weights whose rows do not fill the blocks of a recipe with blocks of 256."""
    if recipe.most.block_size < BLOCK:
        return []
    infos = [info for info in model.tensors.values() if info.shape[:1] and info.shape[0] % BLOCK]
    dtypes = {info.name: recipe.dtype_of(info, model) for info in infos if len(info.shape) > 1}
    return sorted({str(dtype) for dtype in dtypes.values() if dtype is not DType.F32})
