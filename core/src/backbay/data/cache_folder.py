"""Files that are written whole or not at all, and the cache folder.

The cache folder has small values that one process finds out and later ones need not find out again. Nothing depends on
it: a value that cannot be written or read, or that is damaged, is found out anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, BinaryIO, final

from ..errors import BackbayError, reason_of
from ..regular_files import open_regular, read_regular, require_replaceable

FOLDER, OFF = "BACKBAY_CACHE_DIR", "BACKBAY_NO_CACHE"  # environment variables
LARGEST = 1 << 20  # bytes; values are much smaller
OLDEST = 90 * 86400.0  # seconds; older values are removed when another of their kind is kept
POLL = 0.1  # seconds between two looks at a lock
_FILE = re.compile(r"(.*-[0-9a-f]{24})\.json")  # nothing else in the folder is ever removed
logger = logging.getLogger("backbay.cache")


@contextmanager
def replacing(*paths: str | os.PathLike[str]) -> Iterator[tuple[BinaryIO, ...]]:
    """New files, to write to in the block. If the block succeeds, they take the places of `paths`, else they vanish.

    So an old file stays whole until the new one is, a link is replaced and not followed, and a full disk leaves
    everything as it was. Nobody can guess the names of the new files, and lay something there before. A device or a
    pipe is not replaced. BackbayError names the files and the cause.
    """
    targets, asides = [Path(path) for path in paths], list[Path]()
    try:
        for target in targets:
            require_replaceable(target)
        with ExitStack() as stack:
            yield tuple(stack.enter_context(_new_beside(target, asides)) for target in targets)
        for aside, target in zip(asides, targets, strict=True):
            os.replace(aside, target)  # noqa: PTH105
    except OSError as error:
        names = " and ".join(map(str, targets))
        raise BackbayError(f"{names} cannot be written: {error.strerror or reason_of(error)}") from error
    finally:
        for aside in asides:
            with suppress(OSError):  # where nothing can be written, nothing can be removed
                aside.unlink()


def _new_beside(target: Path, asides: list[Path]) -> BinaryIO:
    """Open a new file in the folder of a target, and add its path to those to be removed."""
    aside = target.with_name(f".{target.name[:50]}.{token_hex(8)}.partial")
    file = aside.open("xb")  # exclusive: neither a file nor a link that is there is opened
    asides.append(aside)
    return file


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    with replacing(path) as (file,):
        file.write(text.encode())


def cache_folder() -> Path | None:
    """The cache folder of this user, which may not exist yet; None if it is switched off."""
    if os.environ.get(OFF, "") not in ("", "0"):
        return None
    if given := os.environ.get(FOLDER):
        return Path(given).absolute()
    from platformdirs import user_cache_dir

    found = Path(user_cache_dir("backbay", appauthor=False))
    return found if found.is_absolute() else None  # it is not for a user without a home


@final
class CachedValue:
    """A value of JSON in the cache folder.

    It is found by its kind, by a label, which people see, and by all facts that it depends on.
    """

    def __init__(self, kind: str, label: str, facts: Iterable[object]) -> None:
        digest = hashlib.blake2b(repr([kind, label, *facts]).encode("utf-8", "replace"), digest_size=12)
        key = f"{re.sub(r'[^A-Za-z0-9._+-]', '_', label)[:80]}-{digest.hexdigest()}"
        folder = cache_folder()
        self.path = None if folder is None else folder / kind / f"{key}.json"

    def recall(self, max_age: float = OLDEST) -> Any:
        """The value, if it was kept in the last `max_age` seconds; else None."""
        if self.path is None:
            return None
        try:
            if not 0 <= time.time() - self.path.stat().st_mtime < max_age:
                return None
            return json.loads(read_regular(self.path, LARGEST))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            logger.debug("%s is ignored: %s", self.path, error)
            return None

    def keep(self, value: object) -> None:
        """Keep a value, in place of the last one."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(value))
            for old in _kept_in(self.path.parent):
                if old.age > OLDEST:
                    old.path.unlink(missing_ok=True)
        except (OSError, BackbayError) as error:
            logger.debug("%s is not kept: %s", self.path, error)

    @contextmanager
    def found_once(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """While this lasts, nobody else finds out a value of this kind: others wait, and then can recall what was kept.

        Those that wait call `waiting` again and again, which may raise. On Windows, and without a cache folder, nobody waits.
        The system ends the lock of a process that dies.
        """
        with ExitStack() as stack:
            if self.path is not None:
                try:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    # It stays empty and is never removed: others may wait for it. Its end unlocks it.
                    lock = stack.enter_context(open_regular(self.path.parent / "lock", "ab"))
                except OSError as error:
                    logger.debug("%s is not locked: %s", self.path, error)
                else:
                    while not _locked(lock):
                        waiting()
                        time.sleep(POLL)
            yield

    def forget(self) -> None:
        if self.path is not None:
            try:
                self.path.unlink(missing_ok=True)
            except OSError as error:
                logger.debug("%s is not removed: %s", self.path, error)


def _locked(held: IO[bytes]) -> bool:
    """Whether a file is locked now, or cannot be, as on some network file systems."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.debug("%s is not locked: %s", held.name, error)
    return True


@final
@dataclass(frozen=True)
class CacheFile:
    """A file in the cache folder, with its age in seconds."""

    kind: str
    key: str
    path: Path
    nbytes: int
    age: float


def cache_files() -> list[CacheFile]:
    """All values in the cache folder, by kind and key."""
    folder = cache_folder()
    if folder is None or not folder.is_dir():
        return []
    kinds = sorted(path for path in folder.iterdir() if path.is_dir())
    return [found for kind in kinds for found in _kept_in(kind)]


def _kept_in(kind: Path) -> Iterator[CacheFile]:
    for path in sorted(kind.iterdir()):
        match = _FILE.fullmatch(path.name)
        if match is not None and path.is_file():
            status = path.stat()
            yield CacheFile(
                kind.name, match[1], path, status.st_size, max(0.0, time.time() - status.st_mtime)
            )


def age_text(seconds: float) -> str:
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
