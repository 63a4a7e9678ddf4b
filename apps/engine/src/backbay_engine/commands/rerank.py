"""Rank texts by how well they answer a query."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import numpy as np

from backbay.cli import add_json, say, say_json, table

from .opening import add_backend, add_model, add_texts, add_worker, open_model, require_made, texts_of


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_backend(parser)
    add_worker(parser)
    parser.add_argument("query", help="what the texts should answer")
    add_texts(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    texts = texts_of(args, "rank")
    require_made(args, "scores")
    with open_model(args, args.backend) as llm:
        scores = llm.rerank(args.query, texts)
    best = [int(n) for n in np.argsort(-scores, kind="stable")]
    if args.json:
        say_json([{"index": n, "text": texts[n], "score": float(scores[n])} for n in best])
        return 0
    rows = [(f"{scores[n]:+.4f}", str(n + 1), texts[n][:100]) for n in best]
    say(table(("score", "text", ""), rows, right=(0, 1)))
    return 0
