"""`backbay conform` as a function, for tests."""

from __future__ import annotations

from argparse import ArgumentParser

from backbay_conformance.command import command


def conform(*words: str) -> int:
    """The exit status of the command."""
    parser = ArgumentParser()
    command.add_arguments(parser)
    parser.add_argument("--debug", action="store_true")  # as the command line adds it
    return command.run(parser.parse_args(words))
