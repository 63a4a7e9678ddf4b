"""A sample of a certificate's calls, run again on the backend that is installed here."""

from __future__ import annotations

from collections.abc import Iterator

from backbay_conformance.report.report import BAD, GOOD, Outcome, Report
from backbay_conformance.runner.run import Progress
from backbay_conformance.runner.verification import SAMPLE, CertificateVerdict, verify
from backbay_conformance.runner.verification import CertificateFinding as Finding

from .consistency import Said, arithmetic, draws, key_of

SUMS = {"passed calls", "unsupported calls", "failed calls", "planned calls"}
"""Findings of `verify` that `arithmetic` and `draws` have, too, for runs with failures as well."""


def replay(
    said: Said,
    *,
    sample: int | None = SAMPLE,
    seed: int | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[CertificateVerdict, list[Finding]]:
    """The verdict on a sample, and its findings, in which failures that the certificate lists are no contradiction."""
    verdict = verify(said, sample=sample, seed=seed, jobs=jobs, progress=progress)
    found = [each for each in verdict.findings if each.what not in SUMS]
    if said.get("failures"):
        found = [_with_listed(each, said, verdict.sample) for each in found]
    return verdict, [*found, *_of_lines(said, verdict.sample)]


def verify_whole(
    said: Said, *, sample: int | None, seed: int | None, jobs: int, progress: Progress | None
) -> CertificateVerdict:
    """Check a certificate by what it says of itself, by the calls that its seed draws, and by a sample, run again."""
    verdict, found = replay(said, sample=sample, seed=seed, jobs=jobs, progress=progress)
    verdict.findings = [*arithmetic(said), *draws(said), *found]
    bad = [f"{line['name']} {line['state']}" for line in said["ops"] if line["state"] not in GOOD]
    verdict.findings.append(Finding("no failures", not bad, ", ".join(bad) or "none"))
    return verdict


def _with_listed(finding: Finding, said: Said, report: Report) -> Finding:
    """A finding about a sample that fails as the certificate says it does."""
    if finding.what not in ("the sample", "the sample's calls"):
        return finding
    new = unlisted(said, report)
    if finding.what == "the sample":
        return Finding(finding.what, not new, f"{finding.found}, {len(new)} of them not listed")
    return Finding(
        finding.what, None if finding.agrees is False else True, finding.found
    )  # a failure redraws


def unlisted(said: Said, report: Report) -> list[Outcome]:
    """The failures of a sample in a case and dtype in which the certificate lists none."""
    listed = {(*each["item"].split("/")[:2], each.get("dtype", "")) for each in said.get("failures", ())}
    return [each for each in report.failures if (each.profile, each.name, each.dtype) not in listed]


def _of_lines(said: Said, report: Report) -> Iterator[Finding]:
    """What each line of the sample says of the backend, beside what its calls showed."""
    lines = {key_of(line): line for line in said["ops"]}
    wrong = []
    for key, cell in report.cells.items():
        line = lines.get(key)
        if line is None or not cell.passed:
            continue
        if not cell.precisions <= set(line["precisions"]):
            wrong.append(f"{' '.join(key)} is computed in {', '.join(sorted(cell.precisions))}")
        elif line["state"] not in BAD and cell.levels and not _may_have(line["state"], cell.levels):
            wrong.append(f"{' '.join(key)} is {line['state']}; here {', '.join(sorted(cell.levels))}")
    yield Finding("states and precisions of the sample", not wrong, ", ".join(wrong[:3]) or "the same")


def _may_have(state: str, levels: set[str]) -> bool:
    return levels == {"composite"} if state == "composite" else True
