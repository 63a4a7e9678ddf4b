"""Compute the embeddings of texts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from backbay.cli import add_json, say, say_json, table

from .model_arguments import (
    add_backend_arguments,
    add_model_arguments,
    add_text_arguments,
    add_worker_arguments,
    open_model,
    read_texts,
    require_results,
)


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser)
    add_worker_arguments(parser)
    add_text_arguments(parser)
    parser.add_argument("--raw", action="store_true", help="do not scale vectors to length 1")
    add_json(parser)


def run(args: Namespace) -> int:
    texts = read_texts(args, "embed")
    require_results(args, "embeddings")
    with open_model(args, args.backend) as llm:
        vectors = llm.embed(texts, normalize=not args.raw)
    if args.json:
        pairs = zip(texts, vectors, strict=True)
        say_json([{"text": text, "embedding": vector.tolist()} for text, vector in pairs])
        return 0
    rows = []
    for text, vector in zip(texts, vectors, strict=True):
        numbers = " ".join(f"{x:+.4f}" for x in vector[:6]) + " ..."
        rows.append((text[:60], numbers, *(f"{x:.3f}" for x in vectors @ vector)))
    titles = ("text", f"first of {vectors.shape[1]} numbers", *(f"x {n + 1}" for n in range(len(texts))))
    say(table(titles, rows, right=range(2, len(titles))))
    return 0
