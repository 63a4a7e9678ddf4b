"""The cache folder: what is kept there between processes, and removing it.

What is removed is found out anew. BACKBAY_CACHE_DIR names another folder, BACKBAY_NO_CACHE=1 switches the cache off.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from backbay.data.cache_folder import OFF, Kept, cache_folder, human_age, kept
from backbay.discovery.verdicts import PROBES
from backbay.errors import BackbayError, OptionError
from backbay.memory.report import human_bytes

from .output import add_json, say, say_json, table


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "path", "clear"),
        default="list",
        help="list what is kept (the default), print the folder's path, or remove what is kept",
    )
    parser.add_argument(
        "kind", nargs="?", help="only this kind, such as probes; its values are listed one by one"
    )
    add_json(parser)


def run(args: Namespace) -> int:
    if args.action == "path":
        _print_path(args)
        return 0
    _check_kind(args.kind)
    found = [each for each in kept() if args.kind in (None, each.kind)]
    if args.action == "clear":
        _clear(found, args)
    elif args.json:
        say_json({"folder": _folder(), "kept": [_as_dict(each) for each in found]})
    else:
        say(_table(found) if args.kind is not None else _kinds(found))
    return 0


def _check_kind(kind: str | None) -> None:
    """OptionError for a kind that was never kept, perhaps a misspelled one."""
    folder = cache_folder()
    known = {PROBES, *(path.name for path in _folders(folder))}
    if kind is not None and kind not in known:
        raise OptionError(f"nothing of a kind {kind!r} was ever kept; kinds are {', '.join(sorted(known))}")


def _folders(folder: Path | None) -> list[Path]:
    return (
        [] if folder is None or not folder.is_dir() else [each for each in folder.iterdir() if each.is_dir()]
    )


def _print_path(args: Namespace) -> None:
    if args.kind is not None:
        raise OptionError("`backbay cache path` takes no kind: all kinds lie in one folder")
    folder = _folder()
    if folder is None:
        raise BackbayError(f"there is no cache folder: {OFF} is set, or the user has no home")
    say_json({"folder": folder}) if args.json else say(folder)


def _clear(found: list[Kept], args: Namespace) -> None:
    for each in found:
        each.path.unlink(missing_ok=True)
    if args.json:
        say_json({"folder": _folder(), "removed": [_as_dict(each) for each in found]})
    else:
        values = "1 value" if len(found) == 1 else f"{len(found)} values"
        say(f"removed {values}, {human_bytes(sum(each.nbytes for each in found))}")


def _kinds(found: list[Kept]) -> str:
    """A row for each kind: a folder may have thousands of values."""
    if not found:
        return _nothing()
    kinds: dict[str, list[Kept]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    rows = []
    for kind, values in kinds.items():
        ages = [each.age for each in values]
        nbytes = human_bytes(sum(each.nbytes for each in values))
        rows.append((kind, str(len(values)), nbytes, human_age(min(ages)), human_age(max(ages))))
    shown = table(("kind", "values", "size", "newest", "oldest"), rows, right=(1, 2, 3, 4))
    return f"{shown}\n`backbay cache list KIND` lists the values of a kind"


def _nothing() -> str:
    return f"nothing is kept in {_folder() or 'a cache folder: it is switched off'}"


def _table(found: list[Kept]) -> str:
    if not found:
        return _nothing()
    rows = [(each.kind, each.key, human_bytes(each.nbytes), human_age(each.age)) for each in found]
    return table(("kind", "key", "size", "age"), rows, right=(2, 3))


def _folder() -> str | None:
    folder = cache_folder()
    return None if folder is None else str(folder)


def _as_dict(each: Kept) -> dict[str, Any]:
    return {"kind": each.kind, "key": each.key, "bytes": each.nbytes, "age": each.age, "path": str(each.path)}
