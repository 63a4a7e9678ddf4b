"""The shelf: common beginnings of prompts in a folder, under a budget of bytes, which several processes may share."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError
from backbay.internals import open_regular

from ..errors import DamagedSnapshotError
from .snapshot import TOKENS, Snapshot
from .tensor_file import LARGEST_HEADER, read_file, write_file

log = logging.getLogger(__name__)

SUFFIX: Final = ".safetensors"
ABANDONED: Final = 3600.0  # seconds after which what another process was writing counts as abandoned


class SnapshotMatch(NamedTuple):
    """A file whose tokens begin as a prompt does, and how many of them are those of the prompt."""

    path: Path
    length: int


@final
class SnapshotFolder:
    """The snapshots of one model in a folder. A file is complete or not there; a damaged one is removed.

    anywhere   whether a sequence can go on after any of its tokens; else only after all tokens of a file
    """

    def __init__(self, folder: Path, budget: int, model: str, *, anywhere: bool) -> None:
        self._root, self._folder, self._budget = folder, folder / model, budget
        self._anywhere = anywhere
        self._known: dict[str, NDArray[np.int32]] = {}  # by the name of a file: its tokens
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, tokens: NDArray[np.int32], more_than: int) -> SnapshotMatch | None:
        """The file that has the most of these tokens, if it has more than so many."""
        found = [(_common(held, tokens), len(held), name) for name, held in self._listed()]
        usable = [(common, name) for common, length, name in found if self._anywhere or common == length]
        common, name = max(usable, default=(0, ""))
        return SnapshotMatch(self._folder / name, common) if common > more_than else None

    def read(self, path: Path) -> Snapshot | None:
        """The snapshot of a file, which counts as used now; None if it is gone, damaged, or cannot be read now."""
        try:
            snapshot = Snapshot.from_bytes(read_file(path), path)
        except FileNotFoundError:
            return None
        except OSError as error:  # such as too many open files
            log.warning("%s cannot be read: %s", path, error.strerror)
            return None
        except DamagedSnapshotError as error:
            log.warning("%s", error)
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return snapshot

    def has(self, tokens: NDArray[np.int32], lack: int) -> bool:
        """Whether a file holds these tokens, but for fewer than `lack` of them."""
        return any(begins_with(held, tokens, lack) for _, held in self._listed())

    def add(self, snapshot: Snapshot) -> None:
        """Write a snapshot, and remove what was not used for the longest time until all fit the budget."""
        data = snapshot.to_bytes()
        if len(data) > self._budget:
            return
        tokens = np.array(snapshot.tokens, np.int32)
        name = hashlib.sha256(tokens.tobytes()).hexdigest()[:32] + SUFFIX
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._folder / name, data)
        except (OSError, BackbayError) as error:
            log.warning("a beginning is not kept: %s", error)
            return
        self._known[name] = tokens
        for other, held in list(self._listed()) if self._anywhere else ():  # beginnings of the new one
            if other != name and len(held) < len(tokens) and _common(held, tokens) == len(held):
                (self._folder / other).unlink(missing_ok=True)
        self._fit()

    def _listed(self) -> Iterator[tuple[str, NDArray[np.int32]]]:
        """The files that are there now, of whichever process, with their tokens. Two threads may call this at once."""
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SUFFIX)]  # noqa: PTH208
        except OSError:
            return
        for name in names:
            tokens = self._known.get(name)
            if tokens is None:
                tokens = _tokens_of(self._folder / name)
                if tokens is None:
                    continue
                self._known[name] = tokens
            yield name, tokens
        for gone in self._known.keys() - set(names):
            self._known.pop(gone, None)

    def _fit(self) -> None:
        """Keep within the budget, which all models of the folder share.

        A file from the future was used before the clock went back, and so before all others; a little is another machine's clock.
        """
        files, total, latest = list[tuple[float, int, Path]](), 0, time.time() + ABANDONED
        for path in self._root.glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                if path.suffix == SUFFIX:
                    used = status.st_mtime if status.st_mtime < latest else 0.0
                    files.append((used, status.st_size, path))
                    total += status.st_size
                elif path.name.endswith(".partial") and time.time() - status.st_mtime > ABANDONED:
                    path.unlink(missing_ok=True)
        for _, size, path in sorted(files):
            if total <= self._budget:
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
            total -= size


def _tokens_of(path: Path) -> NDArray[np.int32] | None:
    """The tokens of a file, which are not checked yet; None if it cannot be read, or is none, and then is removed."""
    try:
        with open_regular(path) as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, LARGEST_HEADER)))
            begin, end = header[TOKENS]["data_offsets"]
            if not 0 <= begin <= end <= os.fstat(file.fileno()).st_size - 8 - size:
                raise ValueError("the tokens lie beyond the file's end")
            file.seek(8 + size + begin)
            return np.frombuffer(file.read(end - begin), "<i4")
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, OverflowError, struct.error, RecursionError) as error:
        log.warning("%s is no snapshot, and is removed: %r", path, error)
        with suppress(OSError):
            path.unlink()
        return None


def begins_with(held: NDArray[np.int32], tokens: NDArray[np.int32], lack: int) -> bool:
    """Whether a beginning holds these tokens, but for fewer than `lack` of them."""
    return _common(held, tokens) > len(tokens) - lack


def _common(held: NDArray[np.int32], tokens: NDArray[np.int32]) -> int:
    """How many tokens both begin with."""
    n = min(len(held), len(tokens))
    differs = (held[:n] != tokens[:n]).nonzero()[0]
    return int(differs[0]) if len(differs) else n
