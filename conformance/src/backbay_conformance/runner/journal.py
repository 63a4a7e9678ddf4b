"""The outcomes of a run in the cache folder, as they come, so that a run that was stopped can go on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from backbay.internals import cache_folder, open_regular, read_regular

from ..report.digests import digest, package_of, python_files, sources, suite_files
from ..report.report import Outcome
from ..suite.profiles import SUITE_VERSION
from .selection import Item, RunSettings, SelectionError, in_rounds

RUNS = "runs"  # in the cache folder
LARGEST = 1 << 30  # bytes of a record


class Journal:
    """The record of a run with these settings on these files of the plugin; nothing is kept without a cache folder."""

    def __init__(self, settings: RunSettings, planned: Sequence[Item]) -> None:
        what = (
            SUITE_VERSION,
            sources(suite_files()),
            sources(python_files(package_of(settings.backend))),
            settings,
            [str(item) for item in planned],
        )
        folder, name = cache_folder(), settings.backend.rpartition(":")[2]
        self._path = None if folder is None else folder / RUNS / f"{name}-{digest(map(repr, what))}.json"
        self._planned, self._resumes = planned, False
        self._file: IO[Any] | None = None

    def resumed(self) -> tuple[list[Outcome], list[Item]]:
        """What the stopped run has found, and the items that are left: rounds of a case that it has not ended."""
        found = self._read()
        if not found:
            raise SelectionError(
                "--resume: no run of this backend, as it is now, with these arguments was stopped"
            )
        earlier: list[Outcome] = []
        left: list[Item] = []
        for together in in_rounds(self._planned):
            if all(str(item) in found for item in together):
                earlier += [found[str(item)] for item in together]
            else:
                left += together
        self._resumes = True
        return earlier, left

    def add(self, outcome: Outcome) -> None:
        if self._path is None:
            return
        with suppress(OSError):  # a full disk ends no run
            file = self._opened(self._path)
            file.write(json.dumps(asdict(outcome)) + "\n")
            file.flush()

    def _opened(self, path: Path) -> IO[Any]:
        if self._file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(path, "a" if self._resumes else "w")
        return self._file

    def close(self, *, ended: bool) -> None:
        """The record goes with a run that has come to its end."""
        with suppress(OSError):
            if self._file is not None:
                self._file.close()
                self._file = None
            if ended and self._path is not None:
                self._path.unlink(missing_ok=True)

    def _read(self) -> dict[str, Outcome]:
        if self._path is None:
            raise SelectionError("--resume: there is no cache folder that could hold a stopped run")
        found: dict[str, Outcome] = {}
        with suppress(OSError):
            for line in read_regular(self._path, LARGEST).decode(errors="replace").splitlines():
                with suppress(ValueError, TypeError):  # a line that was not written to its end
                    outcome = Outcome(**json.loads(line))
                    found[outcome.item] = outcome
        return found
