"""The cache folder: what is kept there between processes, and removing it.

What is removed is found out anew. BACKBAY_CACHE_DIR names another folder, BACKBAY_NO_CACHE=1 switches the cache off.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from backbay.data.cache_folder import OFF, CacheFile, age_text, cache_files, cache_folder
from backbay.discovery.records import PROBES
from backbay.errors import BackbayError, OptionError
from backbay.memory.report import human_bytes

from .output import add_json, say, say_json, table


def add_arguments(parser: ArgumentParser) -> None:
    actions = "list what is kept (the default), print the folder's path, or remove what is kept"
    kind = "only this kind, such as probes; its values are listed one by one"
    parser.add_argument("action", nargs="?", choices=("list", "path", "clear"), default="list", help=actions)
    parser.add_argument("kind", nargs="?", help=kind)
    add_json(parser)


def run(args: Namespace) -> int:
    folder = cache_folder()
    if args.action == "path":
        if args.kind is not None:
            raise OptionError("`backbay cache path` takes no kind: all kinds lie in one folder")
        if folder is None:
            raise BackbayError(f"there is no cache folder: {OFF} is set, or the user has no home")
        say_json({"folder": str(folder)}) if args.json else say(str(folder))
        return 0
    inside = folder.iterdir() if folder is not None and folder.is_dir() else ()
    known = {PROBES, *(path.name for path in inside if path.is_dir())}
    if args.kind is not None and args.kind not in known:  # perhaps misspelled
        kinds = ", ".join(sorted(known))
        raise OptionError(f"nothing of a kind {args.kind!r} was ever kept; kinds are {kinds}")
    found = [each for each in cache_files() if args.kind in (None, each.kind)]
    if args.action == "clear":
        for each in found:
            each.path.unlink(missing_ok=True)
    if args.json:
        done = "removed" if args.action == "clear" else "kept"
        place = None if folder is None else str(folder)
        say_json({"folder": place, done: [_as_dict(each) for each in found]})
    elif args.action == "clear":
        values = "1 value" if len(found) == 1 else f"{len(found)} values"
        say(f"removed {values}, {human_bytes(sum(each.nbytes for each in found))}")
    elif not found:
        say(f"nothing is kept in {folder or 'a cache folder: it is switched off'}")
    else:
        rows = [(each.kind, each.key, human_bytes(each.nbytes), age_text(each.age)) for each in found]
        say(_kinds(found) if args.kind is None else table(("kind", "key", "size", "age"), rows, right=(2, 3)))
    return 0


def _kinds(found: list[CacheFile]) -> str:
    """A row for each kind: a folder may have thousands of values."""
    kinds: dict[str, list[CacheFile]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    rows = []
    for kind, values in kinds.items():
        ages = [each.age for each in values]
        nbytes = human_bytes(sum(each.nbytes for each in values))
        rows.append((kind, str(len(values)), nbytes, age_text(min(ages)), age_text(max(ages))))
    shown = table(("kind", "values", "size", "newest", "oldest"), rows, right=(1, 2, 3, 4))
    return f"{shown}\n`backbay cache list KIND` lists the values of a kind"


def _as_dict(each: CacheFile) -> dict[str, Any]:
    return {"kind": each.kind, "key": each.key, "bytes": each.nbytes, "age": each.age, "path": str(each.path)}
