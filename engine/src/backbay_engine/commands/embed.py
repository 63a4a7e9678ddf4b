"""Compute the embeddings of texts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from backbay import BackbayError
from backbay.cli import add_json, say, say_json, standard_input, table

from .opening import add_backend, add_model, add_worker, open_model, require_made


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_backend(parser)
    add_worker(parser)
    parser.add_argument("text", nargs="*", help="texts; by default the lines of standard input")
    parser.add_argument("--raw", action="store_true", help="do not scale vectors to length 1")
    add_json(parser)


def run(args: Namespace) -> int:
    texts = args.text or [line for line in standard_input().split("\n") if line.strip()]
    if not texts:
        raise BackbayError("there is nothing to embed: give texts, or lines on standard input")
    require_made(args, "embeddings")
    with open_model(args, args.backend) as llm:
        vectors = llm.embed(texts, normalize=not args.raw)
    if args.json:
        say_json(
            [
                {"text": text, "embedding": vector.tolist()}
                for text, vector in zip(texts, vectors, strict=True)
            ]
        )
        return 0
    rows = [
        (
            text[:60],
            " ".join(f"{x:+.4f}" for x in vector[:6]) + " ...",
            *(f"{x:.3f}" for x in vectors @ vector),
        )
        for text, vector in zip(texts, vectors, strict=True)
    ]
    similar = [f"x {n + 1}" for n in range(len(texts))]
    say(
        table(
            ("text", f"first of {vectors.shape[1]} numbers", *similar), rows, right=range(2, 2 + len(texts))
        )
    )
    return 0
