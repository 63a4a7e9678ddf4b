"""Two certificates, compared in a terminal."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from backbay.cli import add_json, say, say_json, table

from .comparison import Change, Comparison, compare
from .entry import CERTIFICATE, Entry, read_record

KINDS = ("worse", "slower", "better", "faster", "other")


class CompareCommand:
    """Compare two certificates, or two entries of a register: what became better, worse, faster, slower.

    Exit status 0: nothing became worse; 1: something did. A speed alone never makes it 1.
    """

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        what = "a certificate, or an entry's folder"
        parser.add_argument("before", type=Path, help=what)
        parser.add_argument("after", type=Path, help=what)
        add_json(parser)

    def run(self, args: Namespace, /) -> int:
        found = compare(_record(args.before), _record(args.after))
        if args.json:
            say_json(found.as_dict())
        else:
            say(f"{_title(args.before)} -> {_title(args.after)}")
            _show(found)
        return 1 if found.worse else 0


def _record(path: Path) -> dict[str, object]:
    return read_record(path / CERTIFICATE if path.is_dir() else path)


def _title(path: Path) -> str:
    """Engine and version of an entry, else the file's name."""
    if not path.is_dir():
        return path.name
    entry = Entry.read(path)
    return f"{entry.title} {entry.version}"


def _show(found: Comparison) -> None:
    for note in found.notes:
        say(note)
    for kind in KINDS:
        changes: list[Change] = getattr(found, kind)
        if changes:
            say(f"\n{kind}: {len(changes)}\n")
            say(
                table(("", "", "", ""), [(each.what, each.kind, each.before, each.after) for each in changes])
            )
    if not any(getattr(found, kind) for kind in KINDS):
        say("nothing changed")


command = CompareCommand()
"""What `backbay compare` runs."""
