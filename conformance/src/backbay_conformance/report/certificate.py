"""The proof that a backend keeps the contract: certificate, page and badge, or the reasons against them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backbay.cli import write_text

from ..suite.profiles import PROFILES, SUITE_VERSION
from .digests import Digests, sources, suite_files
from .html import page
from .report import SMALL_SIZES, Report

SMALLEST = ("core",)  # the profiles that a certificate requires

CERTIFIED = (
    *("suite", "backend", "opening", "seed", "size", "few_shapes", "graphs", "profiles"),
    *("planned", "counts", "states", "refusals", "tightness"),
    *("against", "like", "facts", "seconds", "speeds"),
)
"""The parts of a report that a certificate repeats."""
OF_AN_OP = "profile", "name", "dtype", "state", "passed", "unsupported", "refused", "worst", "precisions"
TITLE = "backbay conformance"


def refusals(report: Report) -> list[str]:
    """The reasons why a report earns no certificate."""
    counts = report.counts
    found = list(report.complaints)
    if report.stopped:
        found.append(report.ending)
    if counts["failed"]:
        found.append(f"{counts['failed']} calls failed")
    if not report.has_passed:
        found.append("nothing passed")
    if counts["known"]:
        found.append(f"{counts['known']} known failures")
    return found + too_little(report.size, report.profiles)


def too_little(size: str, profiles: Sequence[str]) -> list[str]:
    """The reasons why a run of some size and profiles can earn no certificate, whatever it finds."""
    small = [f"size {size} is too small; take default or nightly"] if size in SMALL_SIZES else []
    return small + [f"profile {profile} is left out" for profile in SMALLEST if profile not in profiles]


def certificate(report: Report, plugin: Digests) -> dict[str, Any]:
    """The certificate of a report on the backend whose files have these digests."""
    full = report.as_dict()
    ops = [{key: cell[key] for key in OF_AN_OP} for cell in full["cells"]]
    head = {"certificate": TITLE, "issued": datetime.now(UTC).isoformat(timespec="seconds")}
    digests = {"suite": sources(suite_files()), "plugin": sources(plugin), "calls": report.digests}
    return {**head, **{key: full[key] for key in CERTIFIED}, "digests": digests, "ops": ops}


def certify(report: Report, folder: Path, plugin: Digests, at: str = "") -> list[Path]:
    """Write the certificate, its page and its badge; `at` follows the backend's name in the files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    name = report.backend.rpartition(":")[2] + at
    contents = {
        f"{name}-certificate.json": json.dumps(certificate(report, plugin), indent=1) + "\n",
        f"{name}-certificate.html": page(report),
        f"{name}-badge.svg": badge(report),
    }
    for file, text in contents.items():
        write_text(folder / file, text)
    return [folder / file for file in contents]


def badge(report: Report) -> str:
    """A badge with suite version and profiles: green, or grey if some profiles did not run."""
    left, right = "backbay", f"conforms {SUITE_VERSION}"
    whole = all(profile in report.profiles for profile in PROFILES if profile != "large")
    right += "" if whole else f" ({', '.join(report.profiles)})"
    right += ", few shapes" if report.few_shapes else ""
    colour = "#2da44e" if whole else "#57606a"
    a, b = 7 * len(left) + 14, 7 * len(right) + 14
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20" role="img" aria-label="{left}: {right}">
<title>{left}: {right}</title>
<rect width="{a}" height="20" fill="#24292f"/><rect x="{a}" width="{b}" height="20" fill="{colour}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{a / 2:g}" y="14">{left}</text><text x="{a + b / 2:g}" y="14">{right}</text></g></svg>
"""
