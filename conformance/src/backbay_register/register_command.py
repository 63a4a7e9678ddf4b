"""The register's command: write an entry, and check one as CI does."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from backbay import BackbayError
from backbay.cli import add_json, say, say_json, whole
from backbay_conformance.report.terminal import ProgressBar, show_failure
from backbay_conformance.report.trust import TRUST_HELP
from backbay_conformance.runner.verification import SAMPLE

from .adding import Submission, add
from .certificate_command import sample_size, show_findings
from .check import EntryVerdict, check
from .levels import LEVELS, waivers
from .verifying import unlisted

OF_ADD = {
    "engine": "the engine's folder in the register",
    "title": "the engine's name for people",
    "distribution": "the package that has the engine's code, if it has another name",
    "version": "the engine's version; by default the distribution's",
    "command": "the command that made the file; by default the usual one",
    "machine": "processor and system; by default those of this machine",
    "note": "a sentence that a reader must know",
}
FILES_OF_ADD = {
    "known": "the file of known failures that the run had",
    "lock": "name==version of each package; by default this environment's",
    "hunt": "a report of `backbay conform --hunt`, whose worst elements stand beside",
}


class RegisterCommand:
    """Write entries of a register of engines, and check them as the CI of a submission does.

    Exit status of a check 0: accepted; 1: refused, with each reason.
    """

    def add_arguments(self, parser: ArgumentParser, /) -> None:
        add = parser.add_argument
        add("action", choices=("add", "check"), help="write an entry's folder, or check it")
        add(
            "path",
            type=Path,
            help="add: NAME-certificate.json of --certify, or report.json of --json; check: the folder ENGINE/VERSION",
        )
        for name, what in OF_ADD.items():
            add(f"--{name}", default="", help=f"add: {what}")
        for name, what in FILES_OF_ADD.items():
            add(f"--{name}", type=Path, metavar="FILE", help=f"add: {what}")
        add(
            "--register", type=Path, default=Path("register"), help="add: the register's folder (%(default)s)"
        )
        add(
            "--sample",
            type=lambda text: 0 if text == "none" else sample_size(text),
            default=SAMPLE,
            metavar="N",
            help="check: ops and scenarios, drawn at random, whose first calls run again (%(default)s); or all, or none",
        )
        add("--seed", type=whole(0), help="check: seed of the sample; by default another one each time")
        add(
            "--jobs",
            type=whole(1),
            default=max(1, min(2, os.cpu_count() or 1)),
            help="check: worker processes (%(default)s)",
        )
        add("--trust", action="store_true", help=f"check: {TRUST_HELP}")
        add_json(parser)

    def run(self, args: Namespace, /) -> int:
        if args.action == "add":
            return _add(args)
        with ProgressBar(sys.stderr) as bar:
            found = check(
                args.path,
                sample=args.sample,
                seed=args.seed,
                jobs=args.jobs,
                trust=args.trust,
                progress=bar.step,
            )
        say_json(found.as_dict()) if args.json else _show(found)
        return 0 if found.accepted else 1


def _add(args: Namespace) -> int:
    if not args.engine:
        raise BackbayError("name the engine's folder: --engine NAME")
    told = {name: value for name, value in vars(args).items() if name in Submission.__dataclass_fields__}
    folder = add(args.path, Submission(**told), args.register)
    say_json({"folder": str(folder)}) if args.json else say(f"{folder}\nbackbay register check {folder}")
    return 0


def _show(found: EntryVerdict) -> None:
    entry = found.entry
    say(f"{entry.title} {entry.version}: {entry.level} ({LEVELS.get(entry.level, 'no such level')})")
    for waiver in waivers(found.said):
        say(f"  {waiver}")
    say()
    show_findings(found.findings)
    for outcome in unlisted(found.said, found.replay.sample) if found.replay else ():
        show_failure(outcome, sys.stdout)
    say("\naccepted" if found.accepted else "\nrefused:")
    for reason in found.reasons:
        say(f"  {reason}")


command = RegisterCommand()
"""What `backbay register` runs."""
