"""Show the tokens of a text."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from backbay.cli import add_json, say, say_json, standard_input, table

from ..text.tokenizers import tokenizer_from_gguf
from .model_arguments import MODEL


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help=MODEL)
    parser.add_argument("text", nargs="?", help="a text; by default standard input")
    parser.add_argument(
        "--no-special", action="store_true", help="add no special tokens, and read none in the text"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    text = standard_input() if args.text is None else args.text
    tokenizer = tokenizer_from_gguf(args.model)
    ids = tokenizer.encode(text, add_special=not args.no_special, parse_special=not args.no_special)
    if args.json:
        say_json([{"id": id, "token": tokenizer.token_text(id)} for id in ids])
        return 0
    rows = [(str(id), tokenizer.token_text(id), repr(tokenizer.token_bytes(id))[2:-1]) for id in ids]
    say(table(("id", "token", "bytes"), rows, right=(0,)))
    say(f"{len(ids)} tokens of {len(text)} characters")
    return 0
