"""Known failures: each has a reason, and a link or a program that shows it; one that passes is an error, unless the run is small."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from backbay import BackbayError
from backbay.internals import read_regular

from .report import SMALL_SIZES, Outcome, Report

LARGEST = 1 << 24  # bytes of a file
LINE = re.compile(r"(?P<pattern>\S+)\s+(?P<reason>.*\S)\s+(?P<link>https?://\S+|\S+\.py)")


@dataclass(frozen=True)
class KnownFailure:
    """A line of the file: a pattern for profile/name/dtype/check, the reason, and a link or a program's path."""

    pattern: str
    reason: str
    link: str
    line: int

    def matches(self, outcome: Outcome) -> bool:
        return fnmatchcase(f"{outcome.profile}/{outcome.name}/{outcome.dtype}/{outcome.check}", self.pattern)

    def covers(self, group: str) -> bool:
        """Whether the pattern is about a case or scenario, given as profile/name."""
        return fnmatchcase(group, "/".join(self.pattern.split("/")[:2]))


def read_known_failures(path: str | Path) -> list[KnownFailure]:
    """The lines of a file, `profile/name/dtype/check reason link-or-program.py`; # begins a comment, * matches any text."""
    found = []
    try:
        lines = read_regular(path, LARGEST).decode().splitlines()
    except OSError as error:
        raise BackbayError(f"the known failures {path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BackbayError(f"the known failures {path} are no text: {error}") from None
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        match = LINE.fullmatch(line)
        if match is None or match["pattern"].count("/") != 3:
            raise BackbayError(
                f"{path}:{number}: expected `profile/name/dtype/check reason https://link`, or a program.py in the link's place, got {line!r}"
            )
        found.append(KnownFailure(match["pattern"], match["reason"], match["link"], number))
    return found


def set_known_apart(report: Report, known: Iterable[KnownFailure], groups: Iterable[str]) -> None:
    """Separate known failures. Complain of each line that matches nothing, or whose case passes.

    `groups` are all cases and scenarios of the suite. Lines about cases that this run left out are ignored, and a run
    smaller than default draws too little to say that a failure is gone.
    """
    ran = {f"{cell.profile}/{cell.name}" for cell in report.cells.values()}
    every = list(groups)
    is_large = not report.stopped and report.size not in SMALL_SIZES
    for line in known:
        matched = [outcome for outcome in report.failures if line.matches(outcome)]
        report.failures = [outcome for outcome in report.failures if outcome not in matched]
        report.known += matched
        if not any(line.covers(group) for group in every):
            report.complaints.append(f"known failure {line.pattern} (line {line.line}) matches nothing")
        elif not matched and is_large and any(line.covers(group) for group in ran):
            report.complaints.append(
                f"known failure {line.pattern} (line {line.line}) does not fail: remove it"
            )
