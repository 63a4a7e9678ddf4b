"""Standard input, output and error of a command: closed ones, odd encodings, bytes that are no text."""

from __future__ import annotations

import io
import os
import sys

from backbay.errors import BackbayError

ESCAPED = "backslashreplace"


def prepare() -> bool:
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
        raise BackbayError(
            f"standard input is no text in {error.encoding}: {error.reason} at byte {error.start}; convert it"
        ) from None
