"""Types of arguments for several commands, checked before a command does any work."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from math import inf
from pathlib import Path

from backbay.errors import OptionError

LARGEST = 2**31 - 1
DAY = 86400  # seconds


def whole(least: int, most: int = LARGEST) -> Callable[[str], int]:
    """The type of arguments that are whole numbers in a range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ArgumentTypeError(f"must be a whole number in [{least}, {most}], got {text!r}")
        return number

    return parse


def positive(text: str) -> float:
    """The type of arguments that are numbers above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < inf:
        raise ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return number


def seconds(text: str) -> float:
    """The type of arguments that are times: above 0, and no more than a day, as the system's clocks have limits."""
    number = positive(text)
    if number > DAY:
        raise ArgumentTypeError(f"must be at most {DAY} seconds, got {text!r}")
    return number


def file_to_write(text: str) -> str:
    """The type of arguments that name a file to write; checked early, so that no work is lost at the end."""
    path = Path(text)
    if not text or path.is_dir():
        raise ArgumentTypeError(f"must be the path of a file, got {text!r}")
    if not path.parent.is_dir():
        why = f"there is no folder {str(path.parent)!r}; make it first"
        raise ArgumentTypeError(f"{text!r} cannot be written: {why}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written: permission denied; take another folder")
    return text


def folder_to_write(text: str) -> str:
    """The type of arguments that name a folder to write into; the command makes it, but not the folders above it."""
    if not text:
        raise ArgumentTypeError("must be the path of a folder, got ''")
    path = Path(text).absolute()
    place = path if path.exists() else path.parent
    if place.exists() and not place.is_dir():
        raise ArgumentTypeError(f"{text!r} cannot be made: {str(place)!r} is a file; take another folder")
    if not place.exists():
        raise ArgumentTypeError(f"{text!r} cannot be made: there is no folder {str(place)!r}; make it first")
    if not os.access(place, os.W_OK):
        raise ArgumentTypeError(f"{text!r} cannot be written: permission denied; take another folder")
    return text


def add_options(parser: ArgumentParser) -> None:
    what = "an option of the backend, such as weights=copied; may be repeated"
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=what)


def options_of(args: Namespace) -> dict[str, str]:
    return dict(parse_option(text) for text in args.option)


def parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option takes NAME=VALUE, got {text!r}")
    return name, value
