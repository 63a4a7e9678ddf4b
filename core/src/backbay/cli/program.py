"""The program `backbay`: it imports and runs one command, and reports errors as lines on stderr.

Commands are those of core, and those that other packages declare in the entry-point group backbay.commands.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from inspect import getdoc
from threading import Thread
from time import sleep
from typing import NoReturn, Protocol, cast

from backbay.discovery.installed import declared, entry, load_declared
from backbay.errors import BackbayError, OptionError

from .output import flush, note, prepare_output, table

GROUP = "backbay.commands"
PATIENCE = 5.0  # seconds for threads and exit hooks to end
DEBUG_HELP = "show where an error comes from"
PLAIN = argparse.RawDescriptionHelpFormatter
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

CORE = {
    "list": ("listing", "the installed backends, whether they work, and on which devices"),
    "doctor": ("doctor", "which backends work on this machine, why the others do not, and which is taken"),
    "ops": ("ops", "the ops, and how each installed backend runs them"),
    "cache": ("cache", "what is kept between processes, such as results of trials, and removing it"),
    "new-backend": ("scaffold.new_backend", "a repository for a new backend, with kernels, tests and CI"),
    "inspect": ("inspection", "the contents of a model file: metadata and tensors"),
}


class Command(Protocol):
    """The module or object that an entry point of the group names. Its docstring is the command's help."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declare the arguments; the name `--debug` is reserved."""

    def run(self, args: argparse.Namespace, /) -> int:
        """Run the command, and return the exit status. A BackbayError becomes a line on stderr, and status 1."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        can_print = prepare_output()
        status = _run(words)
        flush()
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except (BackbayError, OSError) as error:
        if "--debug" in words:
            raise
        note(f"backbay: {_reason(error)}")
        return USAGE if isinstance(error, OptionError) else FAILED
    if status == OK and not can_print:
        note("backbay: standard output is closed, nothing was printed")
        return FAILED
    return status


def _reason(error: BackbayError | OSError) -> str:
    """The text of an error. Errors of the system do not name standard output, which may be a file on a full disk."""
    if isinstance(error, BackbayError):
        return str(error)
    try:
        sys.stdout.flush()
    except OSError as failed:  # what is not written yet cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"standard output cannot be written: {failed.strerror}"
    return str(error) if error.filename is None else f"{error.filename}: {error.strerror}"


def console() -> NoReturn:
    """Run this process's command line and end it, even if a plugin left a thread or an exit hook that never ends."""
    status = INTERRUPTED
    with suppress(KeyboardInterrupt):  # one that comes in the midst of another error
        status = main()
        if (
            signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):  # no traceback of what ends the process
            signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    # Python notes a Ctrl+C that comes while a text runs as code, as a dataclass makes one, and `python -m` then ends by the
    # signal, even if the error is caught; the next such text clears the note.
    exec("")  # noqa: S102
    Thread(target=_end_anyway, args=(status,), daemon=True).start()
    sys.exit(status)


def _end_anyway(status: int) -> NoReturn:
    sleep(PATIENCE)
    told = "backbay: a thread or an exit hook, perhaps of a plugin, does not end; the process ends without it"
    telling = Thread(target=note, args=(told,), daemon=True)  # perhaps nobody reads standard error
    telling.start()
    telling.join(1)
    os._exit(status)


def installed_commands() -> dict[str, str]:
    """The commands by name, each with a line of help. This reads metadata and sources, and imports no command."""
    lines = {name: what for name, (_, what) in CORE.items()}
    for name, points in declared(GROUP).items():
        summary = re.split("[:;] ", points[0].summary())[0] if len(points) == 1 else ""
        line = summary[:1].lower() + summary[1:]
        lines.setdefault(name, line or f"from {' and '.join(point.origin for point in points)}")
    return lines


def find_command(name: str) -> Command | None:
    """Import and return the command with this name; BackbayError if it is broken, or if two packages declare it."""
    if name in CORE:
        return cast("Command", import_module(f"{__package__}.{CORE[name][0]}"))
    points = declared(GROUP).get(name)
    if points is None:
        return None
    command: Command = load_declared("backbay_command", f"command {name!r}", points)
    missing = [part for part in ("add_arguments", "run") if not callable(getattr(command, part, None))]
    if missing:
        what = f"command {name} of {points[0].origin}"
        raise BackbayError(f"{what}: {command!r} has no {' and no '.join(missing)}")
    return command


def _run(words: list[str]) -> int:
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    parser: argparse.ArgumentParser = _Program(
        "backbay",
        usage="backbay [--debug] COMMAND ...",
        description="One tensor contract, many backends, and proof that each of them is right.",
        formatter_class=PLAIN,
    )
    parser.add_argument("--version", action="version", version=_version())
    parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    parser.parse_args(words[:at])
    if at == len(words):
        sys.stderr.write(parser.format_help())
        return USAGE
    found = find_command(words[at])
    if found is None:
        parser.error(f"no command {words[at]!r}; there are {', '.join(installed_commands())}")
    name, words = words[at], words[at + 1 :]
    parser = _Parser(f"backbay {name}", description=getdoc(found), formatter_class=PLAIN)
    found.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
    # Positional arguments may follow options, as in MODEL --json TEXT; parse_intermixed_args does not handle "--".
    parse = parser.parse_known_args if "--" in words else parser.parse_known_intermixed_args
    args, others = parse(words)
    if others:
        options = _backend_options(others, getattr(args, "backend", None))
        if not options or "option" not in args:
            parser.error(f"unrecognized arguments: {' '.join(others)}")
        args.option += options
    return found.run(args)


def _backend_options(words: Sequence[str], backend: str | None) -> list[str]:
    """Words such as `--library FILE` or `--avoid=nothing`, which the command does not know, as --option takes them;
    empty unless the backend declares all of them."""
    known = entry(backend).load().options if backend and backend != "auto" else {}
    found, left = [], list(words)
    while left:
        flag, equals, value = left.pop(0).partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name not in known or not (equals or left):
            return []
        found.append(f"{name}={value if equals else left.pop(0)}")
    return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in the first line, and where to read on in the second."""
        self.exit(USAGE, f"{self.prog}: error: {message}\n{self.prog} --help shows its arguments\n")


class _Program(_Parser):
    """The parser of what stands before the command; all commands are looked up only for its help."""

    def format_help(self) -> str:
        rows = [(f"  {name}", what) for name, what in installed_commands().items()]
        self.epilog = "commands, each with its own --help:\n\n" + table(("", ""), rows)
        return super().format_help()


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"backbay {version('backbay')}"
    except PackageNotFoundError:
        return "backbay, not installed"
