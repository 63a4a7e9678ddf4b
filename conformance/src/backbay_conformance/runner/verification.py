"""A certificate checked on the backend that is installed here: what it says, and a sample of its calls, run again."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import backbay
from backbay import BackbayError
from backbay.cli import printable
from backbay.internals import read_regular

from ..report.certificate import TITLE
from ..report.digests import files_of, package_of, python_files, sources, suite_files
from ..report.report import GOOD, Report
from ..suite.extensions import load_extensions
from ..suite.lab import OpenSettings
from ..suite.profiles import SUITE_VERSION
from .items.few_shapes import with_few_shapes
from .run import Progress, collect
from .selection import RunSettings, SelectionError, first_round, items, names, select
from .workers.supervisor import isolated

LARGEST = 1 << 28  # bytes of a certificate
SAMPLE = 24
"""The ops and scenarios whose first calls are run again, unless another number is asked for."""


@dataclass
class CertificateFinding:
    """One thing that a certificate says, and what was found here; `agrees` is None where it could not be checked."""

    what: str
    agrees: bool | None
    found: str


@dataclass
class CertificateVerdict:
    """The findings about a certificate; it holds if none of them contradicts it, and the sample ran."""

    certificate: Mapping[str, Any]
    seed: int
    sample: Report
    findings: list[CertificateFinding] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return self.sample.counts["passed"] > 0 and all(each.agrees is not False for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        said = {
            key: self.certificate[key] for key in ("backend", "suite", "issued", "size", "few_shapes", "seed")
        }
        findings = [vars(each) for each in self.findings]
        sample = {"seed": self.seed, "counts": self.sample.counts, "calls": sorted(self.sample.first_calls)}
        failures = [outcome.as_dict() for outcome in self.sample.failures]
        return {
            "certificate": said,
            "holds": self.holds,
            "findings": findings,
            "sample": sample,
            "failures": failures,
        }


def read_certificate(path: Path) -> dict[str, Any]:
    """The certificate of a file; an error says what is wrong with it."""
    try:
        data = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise BackbayError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BackbayError(f"{path} is no certificate: {error}") from None
    if not isinstance(data, dict) or data.get("certificate") != TITLE:
        raise BackbayError(f"{path} is no certificate, as `backbay conform NAME --certify` writes them")
    if data.get("suite") != SUITE_VERSION:
        raise BackbayError(
            f"{path} was issued by suite {data.get('suite')}, which draws other calls than {SUITE_VERSION}, the one "
            "that is installed; install that version to verify it"
        )
    return data


def opened_by(certificate: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The backend that a certificate names, and the options that it is opened with."""
    try:
        return str(certificate["backend"]), OpenSettings.from_dict(certificate["opening"]).options
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BackbayError(f"the certificate is damaged: {type(error).__name__}: {error}") from None


def verify(
    certificate: Mapping[str, Any],
    *,
    sample: int | None = SAMPLE,
    seed: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CertificateVerdict:
    """Check a certificate on the backend that is installed under its name.

    sample   the number of ops and scenarios, drawn at random, whose first calls are run again; None: all
    seed     of the choice of the sample; by default nobody knows it before
    """
    try:
        return _verified(
            certificate, sample, random.randrange(1 << 32) if seed is None else seed, jobs, progress
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise BackbayError(f"the certificate is damaged: {type(error).__name__}: {error}") from None


def _verified(
    said: Mapping[str, Any], sample: int | None, seed: int, jobs: int, progress: Progress | None
) -> CertificateVerdict:
    name, opening = backbay.choose(said["backend"]).name, OpenSettings.from_dict(said["opening"])
    load_extensions()
    keys = [
        key
        for key in names(said["profiles"])
        if any((op["profile"], op["name"]) == key for op in said["ops"])
    ]
    if not keys:
        raise SelectionError("the certificate names no op and no scenario that this suite has")
    chosen = keys if sample is None else random.Random(seed).sample(keys, min(sample, len(keys)))
    few = said["few_shapes"]
    planned = [item for key in sorted(chosen) for item in first_round(key, said["size"])]
    planned = with_few_shapes(planned, said["seed"]) if few else planned
    report = Report(
        name, said["seed"], said["size"], tuple(said["profiles"]), opening=opening, few_shapes=few
    )
    result = CertificateVerdict(said, seed, report)
    result.findings += _of_files(said, name)
    result.findings += _of_counts(said)
    settings = RunSettings(name, report.seed, opening=opening)
    collect(report, isolated(settings, planned, jobs, report.facts), len(planned), progress)
    result.findings += _of_facts(said["facts"], report.facts)
    result.findings += _of_sample(said, report)
    result.findings.append(CertificateFinding("the other calls", None, _left(said, report)))
    return result


def _of_files(said: Mapping[str, Any], name: str) -> Iterator[CertificateFinding]:
    for what, files in (("suite", suite_files()), ("plugin", python_files(package_of(name)))):
        same = said["digests"][what] == sources(files)
        yield CertificateFinding(f"the {what}'s Python files", same, "the same" if same else "others")
    compiled = sorted({path.name for path in files_of(package_of(name)) if path.suffix == ".so"})
    if compiled:
        yield CertificateFinding(
            "compiled files", None, f"each machine builds its own: {', '.join(compiled)}"
        )


def _of_counts(said: Mapping[str, Any]) -> Iterator[CertificateFinding]:
    counts, ops = said["counts"], said["ops"]
    for count in ("passed", "unsupported"):
        total = sum(op[count] for op in ops)
        yield CertificateFinding(
            f"{count} calls", counts[count] == total, f"{counts[count]:,}; by op together {total:,}"
        )
    bad = [f"{op['name']} {op['state']}" for op in ops if op["state"] not in GOOD]
    failed = counts["failed"] + counts["known"]
    yield CertificateFinding("failed calls", not failed and not bad, ", ".join(bad) or str(failed))
    if said["like"] is not None:
        yield CertificateFinding("calls of a model", None, f"{said['like']['model']} is not here")
        return
    if said["facts"].get("scenarios", []) == list(load_extensions()):
        usual = items(select(said["profiles"]), said["size"])
        planned = len(with_few_shapes(usual, said["seed"]) if said["few_shapes"] else usual)
        total = counts["passed"] + counts["unsupported"]
        yield CertificateFinding(
            "planned calls", planned == total == said["planned"], f"{total:,}; this suite plans {planned:,}"
        )
    else:
        yield CertificateFinding("planned calls", None, "other packages add scenarios here")


def _of_facts(said: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[CertificateFinding]:
    yield CertificateFinding(
        "plugin", said["backend"] == found["backend"], _both(said["backend"], found["backend"])
    )
    for key in ("contract", "kernels", "deterministic"):
        yield CertificateFinding(key, said.get(key) == found.get(key), _both(said.get(key), found.get(key)))
    for key in ("devices", "python", "machine"):
        if said[key] != found[key]:
            yield CertificateFinding(key, None, _both(said[key], found[key]))


def _of_sample(said: Mapping[str, Any], report: Report) -> Iterator[CertificateFinding]:
    counts = report.counts
    told = f"{counts['passed']} of {report.tried} passed, {counts['unsupported']} unsupported"
    yield CertificateFinding("the sample", not counts["failed"], f"{told}, {counts['failed']} failed")
    drawn = said["digests"]["calls"]
    others = [group for group, own in report.digests.items() if drawn.get(group) != own]
    yield CertificateFinding(
        "the sample's calls", not others, f"others: {', '.join(others)}" if others else "the same"
    )
    cells = {(op["profile"], op["name"], op["dtype"]): op for op in said["ops"]}
    for key, cell in report.cells.items():
        op = cells.get(key)
        if op is None:
            yield CertificateFinding(" ".join(key), False, "not in the certificate")
        elif cell.unsupported > op["unsupported"] or cell.passed > op["passed"]:
            told = f"{cell.passed} passed, {cell.unsupported} unsupported; the certificate has fewer"
            yield CertificateFinding(" ".join(key), False, told)
        elif cell.worst > op["worst"] + 1e-9:
            yield CertificateFinding(
                " ".join(key), None, f"{cell.worst:.3f} of the bound here, {op['worst']:.3f} there"
            )


def _left(said: Mapping[str, Any], report: Report) -> str:
    return f"{said['planned'] - report.tried:,} of {said['planned']:,} calls were not run again"


def _both(said: object, found: object) -> str:
    return printable(str(found) if said == found else f"{said}; here {found}")
