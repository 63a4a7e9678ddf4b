"""Run a model on two backends, and show where their results differ: block by block, then op by op."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from backbay.cli import add_json, file_to_write, say, say_json, table

from ..images.picture import Image
from ..plots import depth
from .comparison import Difference, blocks, ops
from .opening import add_images, add_model, open_model, write_plot

TOKENS = 16


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--a", default="cpu_ref", metavar="NAME", help="the reference: any installed backend (cpu_ref)"
    )
    parser.add_argument("--b", required=True, metavar="NAME", help="the backend to compare with it")
    parser.add_argument("-p", "--prompt", help=f"the prompt; by default {TOKENS} random tokens")
    add_images(parser, "a picture before the prompt: the encoder is compared, too")
    parser.add_argument("--all", action="store_true", help="list all ops, not only those beyond their bound")
    parser.add_argument(
        "--plot",
        type=file_to_write,
        metavar="FILE",
        help="plot the error through the model's depth, as SVG",
    )
    add_json(parser)


def run(args: Namespace) -> int:
    """Exit status 1 if an op's error exceeds the bound of the backend's stated precision."""
    with ExitStack() as stack:
        a, b = (stack.enter_context(open_model(args, name)) for name in (args.a, args.b))
        text = drawn(a.vocabulary_size) if args.prompt is None else args.prompt
        prompt = [*(Image(path) for path in args.image), text] if args.image else text
        through, singly = blocks(a, b, prompt), list(ops(a, b, prompt))
    broken = [op for op in singly if op.broken]
    if args.json:
        say_json(
            {
                "blocks": as_dicts(through),
                "ops": as_dicts(singly),
                "first": broken[0].name if broken else None,
            }
        )
    else:
        tell(through, singly if args.all else broken, len(singly))
    if args.plot:
        title = f"{Path(args.model).name}: {args.b} beside {args.a}"
        errors = {"relative error": [x.error for x in through]}
        write_plot(args, depth(title, [block.name for block in through], errors))
    return 1 if broken else 0


def drawn(vocabulary: int) -> list[int]:
    return [int(id) for id in np.random.default_rng(0).integers(0, vocabulary, TOKENS)]


def tell(through: list[Difference], shown: list[Difference], count: int) -> None:
    say(table(("after", "relative error"), [(x.name, f"{x.error:.2e}") for x in through], right=(1,)))
    say()
    if shown:
        rows = [
            (
                x.name,
                f"{x.error:.2e}",
                "" if x.bound is None else f"{x.bound:.1e}",
                "beyond" if x.broken else "",
                x.note,
            )
            for x in shown
        ]
        say(table(("op, on equal operands", "error", "bound", "", "result"), rows, right=(1, 2)))
    broken = [x for x in shown if x.broken]
    say(
        f"first op beyond its bound: {broken[0].name}"
        if broken
        else f"all {count} ops are within their bounds"
    )


def as_dicts(differences: list[Difference]) -> list[dict[str, Any]]:
    return [
        {"name": x.name, "error": x.error, "bound": x.bound, "broken": x.broken, "note": x.note}
        for x in differences
    ]
