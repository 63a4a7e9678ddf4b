"""The arguments, the input and the output of commands: tables that fit the terminal, JSON, and streams that are odd."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import textwrap
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Sequence
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any

from backbay.errors import BackbayError, OptionError
from backbay.regular_files import require_replaceable

LARGEST = 2**31 - 1
DAY = 86400  # seconds


ESCAPED = "backslashreplace"
JSON_HELP = "print JSON, for programs"
GAP = "  "
NARROWEST = 16  # columns are not made narrower


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


def shares(text: str) -> tuple[float, ...]:
    """The type of arguments that are shares, N,N: none below 0, and not all 0."""
    try:
        numbers = tuple(float(number) for number in text.split(","))
    except ValueError:
        numbers = ()
    if not all(0 <= number < inf for number in numbers) or not any(numbers):
        raise ArgumentTypeError(f"must be shares such as 3,1, got {text!r}")
    return numbers


def timeout_seconds(text: str) -> float:
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
    try:
        require_replaceable(path)
    except OSError as error:
        raise ArgumentTypeError(f"{text!r} cannot be written: {error.strerror}; take another file") from None
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
    what = "an option of the backend, such as weights=copied; may be repeated, and be written as --NAME VALUE"
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=what)


def options_of(args: Namespace) -> dict[str, str]:
    return dict(parse_option(text) for text in args.option)


def parse_option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--option takes NAME=VALUE, got {text!r}")
    return name, value


def prepare_output() -> bool:
    """Let every character be written, if need be as an escape. False if standard output is closed."""
    is_open = sys.stdout is not None
    if not is_open:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  stays open until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)
    return is_open


def standard_input() -> str:
    if sys.stdin is None:
        raise BackbayError("standard input is closed")
    binary = getattr(sys.stdin, "buffer", None)
    return sys.stdin.read() if binary is None else _text(binary.read())


def standard_line(prompt: str = "> ") -> str | None:
    """The next line of standard input; None at its end. A terminal shows the prompt."""
    if sys.stdin is None:
        raise BackbayError("standard input is closed")
    if sys.stdout is not None:
        sys.stdout.flush()  # `input` does it too, and swallows a Ctrl+C that comes meanwhile
    try:
        line = input(prompt if sys.stdin.isatty() else "")
    except EOFError:
        return None
    return _text(line.encode(sys.stdin.encoding or "utf-8", "surrogateescape"))


def _text(data: bytes) -> str:
    encoding = sys.stdin.encoding or "utf-8"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise BackbayError(f"standard input is no text in {error.encoding}: {where}; convert it") from None


def add_json(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help=JSON_HELP)


def say(text: str = "") -> None:
    _write(printable(text) + "\n")


def note(text: str) -> None:
    """Write a line for people to standard error, beside the output."""
    sys.stderr.write(printable(text) + "\n")


def say_json(value: Any) -> None:
    _write(json.dumps(value, indent=2) + "\n")  # dumps writes printable ASCII only


def flush() -> None:
    _write("", flushed=True)


def _write(text: str, *, flushed: bool = False) -> None:
    try:
        sys.stdout.write(text)
        if flushed:
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(f"standard output cannot be written: {error.strerror}") from error


def printable(text: str) -> str:
    """Escape control characters, which texts of files and plugins may contain; line breaks and tabs stay."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
) -> str:
    """Rows as aligned columns, those in `right` to the right. If they exceed `width`, the widest are wrapped."""
    shown = [titles, *rows] if any(titles) else rows
    cells = [[printable(cell.replace("\t", " ")) for cell in row] for row in shown]
    if width is None and (sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        width = shutil.get_terminal_size().columns  # without a terminal, there is no limit
    columns = zip(*cells, strict=True)
    widest = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
    widths = _fitting(widest, right, width)
    return "\n".join(line for row in cells for line in _lines(row, widths, right))


def _fitting(widths: list[int], right: Collection[int], limit: int | None) -> list[int]:
    """Narrow the widest columns until all fit into `limit`; columns in `right`, which are numbers, keep their width."""
    excess = 0 if limit is None else sum(widths) + len(GAP) * (len(widths) - 1) - limit
    while excess > 0:
        widest = max((n for n in range(len(widths)) if n not in right), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
        excess -= 1
    return widths


def _lines(row: Sequence[str], widths: Sequence[int], right: Collection[int]) -> list[str]:
    lines = []
    for parts in zip_longest(*map(_wrapped, row, widths), fillvalue=""):
        cells = zip(parts, widths, strict=True)
        aligned = [part.rjust(w) if n in right else part.ljust(w) for n, (part, w) in enumerate(cells)]
        lines.append(GAP.join(aligned).rstrip())
    return lines


def _wrapped(cell: str, width: int) -> list[str]:
    parts: list[str] = []
    for line in cell.split("\n"):
        parts += [line] if len(line) <= width else textwrap.wrap(line, width) or [""]
    return parts
