"""Arguments that several commands take."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from backbay.errors import OptionError


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the backend")


def options_of(args: Namespace) -> dict[str, str]:
    """What was given with --option, for BackendParams."""
    return dict(_option(text) for text in args.option)


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option takes NAME=VALUE, got {text!r}")
    return name, value
