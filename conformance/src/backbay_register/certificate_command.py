"""Certificates of backends: whether one holds on this machine."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from backbay.cli import add_json, say, say_json, table, whole
from backbay_conformance.report.terminal import ProgressBar, show_failure
from backbay_conformance.report.trust import TRUST_HELP, require_trust
from backbay_conformance.runner.verification import (
    SAMPLE,
    CertificateFinding,
    CertificateVerdict,
    opened_by,
    read_certificate,
)

from .verifying import verify_whole

MARKS = {True: "holds", False: "CONTRADICTED", None: "not checked"}


class CertificateCommand:
    """Verify a certificate: run a sample of its calls on the backend installed here, and compare versions and counts.

    Exit status 0: nothing contradicts it; 1: something does.
    """

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        add = parser.add_argument
        add("action", choices=("verify",), help="verify: check the certificate on this machine")
        add("file", type=Path, help="NAME-certificate.json, as `backbay conform NAME --certify` writes it")
        add(
            "--sample",
            type=sample_size,
            default=SAMPLE,
            metavar="N",
            help="ops and scenarios, drawn at random, whose first calls are run again (%(default)s); or all",
        )
        add(
            "--seed",
            type=whole(0),
            help="seed of the sample; by default another one each time, which is printed",
        )
        add(
            "--jobs",
            type=whole(1),
            default=max(1, min(2, os.cpu_count() or 1)),
            help="worker processes (%(default)s)",
        )
        add("--trust", action="store_true", help=TRUST_HELP)
        add_json(parser)

    def run(self, args: Namespace, /) -> int:
        certificate = read_certificate(args.file)
        if not args.trust:
            require_trust(args.file, *opened_by(certificate))
        with ProgressBar(sys.stderr) as bar:
            found = verify_whole(
                certificate, sample=args.sample, seed=args.seed, jobs=args.jobs, progress=bar.step
            )
        say_json(found.as_dict()) if args.json else _show(found)
        return 0 if found.holds else 1


def sample_size(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return whole(1)(text)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(f"{error}, or all") from None


def show_findings(findings: Sequence[CertificateFinding]) -> None:
    say(table(("", "", ""), [(each.what, MARKS[each.agrees], each.found) for each in findings]))


def _show(found: CertificateVerdict) -> None:
    said = found.certificate
    few = ", few shapes" if said["few_shapes"] else ""
    say(f"{said['backend']}: suite {said['suite']}, size {said['size']}{few}, issued {said['issued']}\n")
    show_findings(found.findings)
    for outcome in found.sample.failures:
        show_failure(outcome, sys.stdout)
    verdict = "holds here" if found.holds else "does not hold here"
    say(f"\nthe certificate {verdict} (sample {found.seed}: `--seed {found.seed}` draws it again)")


command = CertificateCommand()
"""What `backbay certificate` runs."""
