"""The suite's commands as functions, for tests."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from backbay_conformance.command import command


def conform(*words: str) -> int:
    """The exit status of `backbay conform`."""
    return run_command(command, *words)


def run_command(command: Any, *words: str) -> int:
    parser = ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true")  # as the command line adds it
    return int(command.run(parser.parse_args(words)))
