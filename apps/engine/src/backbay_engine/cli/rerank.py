"""Rank texts by how well they answer a query."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import numpy as np

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
    parser.add_argument("query", help="what the texts should answer")
    add_text_arguments(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    texts = read_texts(args, "rank")
    require_results(args, "scores")
    with open_model(args, args.backend) as llm:
        scores = llm.rerank(args.query, texts)
    best = [int(n) for n in np.argsort(-scores, kind="stable")]
    if args.json:
        say_json([{"index": n, "text": texts[n], "score": float(scores[n])} for n in best])
        return 0
    rows = [(f"{scores[n]:+.4f}", str(n + 1), texts[n][:100]) for n in best]
    say(table(("score", "text", ""), rows, right=(0, 1)))
    return 0
