"""The check of an entry: what a submission says, computed anew, and a sample of its calls, run again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import backbay
from backbay import BackbayError
from backbay_conformance.report.digests import sources, suite_files
from backbay_conformance.report.known_failures import KnownFailure, read_known_failures
from backbay_conformance.report.trust import require_trust
from backbay_conformance.runner.run import Progress
from backbay_conformance.runner.selection import names
from backbay_conformance.runner.verification import SAMPLE, CertificateVerdict, opened_by
from backbay_conformance.runner.verification import CertificateFinding as Finding
from backbay_conformance.suite.profiles import SUITE_VERSION

from .adding import device_of, earned_level, flags_of
from .consistency import Said, arithmetic, draws
from .entry import (
    BADGE,
    CERTIFICATE,
    KNOWN,
    OTHER_SEEDS,
    SEEDS,
    Entry,
    file_digests,
    locked,
    normal,
    read_record,
    strange_files,
    usual_command,
)
from .levels import badge, waivers
from .verifying import replay

LEAST_WORDS = 2
"""The words of a machine: at least a processor and a system."""


@dataclass
class EntryVerdict:
    """The findings about an entry; it is accepted if none of them contradicts it."""

    folder: Path
    entry: Entry
    said: Said
    findings: list[Finding] = field(default_factory=list)
    replay: CertificateVerdict | None = None

    @property
    def accepted(self) -> bool:
        return all(each.agrees is not False for each in self.findings)

    @property
    def reasons(self) -> list[str]:
        return [f"{each.what}: {each.found}" for each in self.findings if each.agrees is False]

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": self.folder.name,
            "engine": self.entry.engine,
            "version": self.entry.version,
            "level": self.entry.level,
            "accepted": self.accepted,
            "waivers": list(waivers(self.said)),
            "findings": [vars(each) for each in self.findings],
            "sample": {"seed": self.replay.seed, "counts": self.replay.sample.counts}
            if self.replay
            else None,
        }


def check(
    folder: Path,
    *,
    sample: int | None = SAMPLE,
    seed: int | None = None,
    jobs: int = 1,
    trust: bool = False,
    progress: Progress | None = None,
) -> EntryVerdict:
    """Check the entry in a folder; a sample of its calls runs again where its backend is installed.

    sample   the number of ops and scenarios in the sample: None for all, 0 for none
    """
    folder = folder.absolute()
    entry, said = Entry.read(folder), read_record(folder / CERTIFICATE)
    verdict = EntryVerdict(folder, entry, said)
    others = [read_record(folder / name) for name in OTHER_SEEDS if (folder / name).is_file()]
    try:
        verdict.findings += _of_suite(entry, said)
        verdict.findings += _of_entry(folder, entry, said)
        verdict.findings += _of_level(folder, entry, said)
        if is_current(said):
            for each in (said, *others):
                verdict.findings += [*arithmetic(each), *draws(each)]
            verdict.findings += _of_known(folder, said)
        else:
            verdict.findings.append(Finding("calls", None, "only their own suite draws them"))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BackbayError(f"{folder}: damaged: {type(error).__name__}: {error}") from None
    why_not = "not asked for" if sample == 0 else _why_no_replay(folder, said, trust)
    if not why_not and verdict.accepted:
        verdict.replay, found = replay(said, sample=sample, seed=seed, jobs=jobs, progress=progress)
        verdict.findings += found
    else:
        verdict.findings.append(Finding("a sample, run again", None, why_not or "refused before"))
    return verdict


def is_current(said: Said) -> bool:
    """Whether the suite that is installed here made the certificate."""
    return (said["suite"], said.get("digests", {}).get("suite")) == (SUITE_VERSION, sources(suite_files()))


def _of_suite(entry: Entry, said: Said) -> Iterator[Finding]:
    own, here = entry.suite, sources(suite_files())
    told = (said["suite"], said.get("digests", {}).get("suite", ""), said["seed"])
    same = (own.version, own.digest, own.seed) == told
    yield Finding(
        "the entry's suite", same, " ".join(map(str, told if same else (*told, "in the certificate")))
    )
    now = f"{own.version}, {own.digest}"
    now += "" if is_current(said) else f"; installed is {SUITE_VERSION}, {here}: judge the engine anew"
    yield Finding("suite", is_current(said), now)
    yield Finding("seed", said["seed"] == SEEDS[0], f"{said['seed']}; an entry's is {SEEDS[0]}")
    yield Finding("frozen", entry.frozen == own.frozen, "suite, seed and Hypothesis")
    installed = version("hypothesis")
    remedy = (
        ""
        if own.hypothesis == installed
        else f"; here {installed}, which may draw other calls: install that one"
    )
    yield Finding("Hypothesis", not remedy, f"{own.hypothesis or 'missing'}{remedy}")


def _of_entry(folder: Path, entry: Entry, said: Said) -> Iterator[Finding]:
    place = (folder.parent.name, folder.name)
    yield Finding("place", place == (entry.engine, entry.version), "/".join(place))
    changed = sorted(name for name, own in _union(entry.files, file_digests(folder)) if own[0] != own[1])
    yield Finding(
        "files", not changed, ", ".join(changed) or f"{len(entry.files)} with the digests of the entry"
    )
    strange = strange_files(folder)
    yield Finding("other files", not strange, ", ".join(strange) or "none")
    yield Finding("flags", entry.flags == flags_of(said), " ".join(entry.flags) or "none")
    yield Finding("device", entry.device == device_of(said) != "", entry.device or "missing")
    yield Finding("machine", len(entry.machine.split()) >= LEAST_WORDS, entry.machine or "missing")
    date = said["issued"][:10]
    yield Finding("date", entry.date == date, f"{entry.date}; the certificate is of {date}")
    missing = sorted(set(_words(usual_command(said))) - set(_words(entry.command)))
    yield Finding("command", not missing, f"without {' '.join(missing)}" if missing else entry.command)
    lock = locked(folder)
    plugin, _, own = said["facts"]["backend"].rpartition(" ")
    wanted = {plugin: own, "hypothesis": entry.suite.hypothesis}
    wanted |= dict([entry.distribution.split("==")]) if "==" in entry.distribution else {"distribution": "?"}
    wrong = [f"{name} {own}" for name, own in wanted.items() if lock.get(normal(name)) != own]
    yield Finding(
        "lock file", not wrong, f"without {', '.join(wrong)}" if wrong else f"{len(lock)} distributions"
    )


def _of_level(folder: Path, entry: Entry, said: Said) -> Iterator[Finding]:
    earned = earned_level(folder, said)
    yield Finding("level", entry.level == earned, f"{entry.level}; the certificate earns {earned}")
    shown = (folder / BADGE).read_text() if (folder / BADGE).is_file() else ""
    yield Finding("badge", shown == badge(earned, said["suite"]), earned if shown else "missing")


def _of_known(folder: Path, said: Said) -> Iterator[Finding]:
    """Each known failure must be a line of the file, and each line must be of a failure, or of a part of the suite."""
    lines = read_known_failures(folder / KNOWN) if (folder / KNOWN).is_file() else []
    failures = said.get("failures", [])
    known = sum(each.get("count", 1) for each in failures if any(matches(line, each) for line in lines))
    told = said["counts"].get("known", 0)
    yield Finding("known failures", known == told, f"{known:,} of {told:,} are lines of {KNOWN}")
    groups = ["/".join(key) for key in names()]
    strange = [line.pattern for line in lines if not any(line.covers(group) for group in groups)]
    yield Finding("lines of known failures", not strange, ", ".join(strange) or f"{len(lines)}")


def matches(line: KnownFailure, failure: Said) -> bool:
    """Whether a line of the file of known failures is about a failure that a certificate lists."""
    profile, name = failure["item"].split("/")[:2]
    return fnmatchcase(
        f"{profile}/{name}/{failure.get('dtype', '')}/{failure.get('check', '')}", line.pattern
    )


def _why_no_replay(folder: Path, said: Said, trust: bool) -> str:
    """The reason why no call can run again here; empty if it can."""
    name, options = opened_by(said)
    try:
        if ":" not in name:
            backbay.choose(name)
        if not trust:
            require_trust(folder, name, options)
    except BackbayError as error:
        return str(error)
    return ""


def _words(command: str) -> list[str]:
    """The words of a command that decide what runs, in which `--a=b` is `--a b`."""
    words = shlex.split(command.replace("=", " "))
    return [word for word in words if word not in ("--json", "report.json", "--certify", "proof")]


def _union(a: dict[str, str], b: dict[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    yield from ((name, (a.get(name, ""), b.get(name, ""))) for name in a.keys() | b.keys())
