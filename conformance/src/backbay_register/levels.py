"""The levels of an engine, by what its certificate holds, and what stands beside each level."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from backbay_conformance.suite.profiles import STANDARD

from .entry import SEEDS

NONE, READS, KEEPS, PROVEN = "none", "reads", "keeps the contract", "proven"
LEVELS = {
    NONE: "some calls of core fail, or too few ran",
    READS: "a smoke run or a larger one, in which no call of core fails",
    KEEPS: "a default run or a larger one, in which nothing fails",
    PROVEN: "three nightly runs of different seeds, in which nothing fails, verified in a fresh environment",
}
COLOURS = {NONE: "#57606a", READS: "#0969da", KEEPS: "#1a7f37", PROVEN: "#8250df"}
Said = Mapping[str, Any]


def level_of(said: Said, others: Sequence[Said] = (), *, verified: bool = False) -> str:
    """The highest level of a certificate; `others` are those of the further seeds."""
    if not _core_passes(said):
        return NONE
    if not _nothing_fails(said):
        return READS
    runs = [said, *others]
    seeds = tuple(each["seed"] for each in runs)
    nightly = all(each["size"] == "nightly" and _nothing_fails(each) for each in runs)
    same = all((each["backend"], _files(each)) == (said["backend"], _files(said)) for each in runs)
    return PROVEN if seeds == SEEDS and nightly and same and verified else KEEPS


def _files(said: Said) -> tuple[str, str]:
    """The digests of the plugin's and the suite's files; suites before 1.2 recorded none."""
    digests = said.get("digests", {})
    return digests.get("plugin", ""), digests.get("suite", "")


def _of_core(said: Said) -> list[Said]:
    return [line for line in said["ops"] if line["profile"] == "core"]


def _core_passes(said: Said) -> bool:
    core = _of_core(said)
    ran = said["size"] != "tiny" and "core" in said["profiles"] and any(line["passed"] for line in core)
    return ran and not any(line.get("failed", 0) for line in core)


def _nothing_fails(said: Said) -> bool:
    counts = said["counts"]
    whole = set(STANDARD) <= set(said["profiles"])
    return said["size"] in ("default", "nightly") and whole and not counts["failed"] + counts.get("known", 0)


def failed_again(said: Said) -> list[Said]:
    """The failures of an earlier run that were tried again; no seed draws them."""
    return [each for each in said.get("failures", ()) if each["item"].endswith("/again")]


def waivers(said: Said) -> Iterator[str]:
    """What a reader must know beside the level: nothing of it is hidden by a badge."""
    counts = said["counts"]
    if counts["failed"]:
        yield f"{counts['failed']:,} calls fail"
    if counts.get("known"):
        yield f"{counts['known']:,} calls fail as known"
    if of_core := sum(line.get("failed", 0) for line in _of_core(said)):
        yield f"{of_core:,} of them in core, which a level does not allow"
    left_out = said.get("planned", 0) - sum(counts.values()) + len(failed_again(said))
    if left_out > 0:
        yield f"{left_out:,} calls left out, of ops that end the process again and again"
    if said.get("few_shapes"):
        yield "few shapes: a third of planted faults goes unnoticed"
    left = [profile for profile in STANDARD if profile not in said["profiles"]]
    if left:
        yield f"profiles left out: {', '.join(left)}"
    if (said.get("refusals") or {}).get("share"):
        yield f"{said['refusals']['share']:.1%} of calls refused at compile"
    unsupported = sum(line["state"] == "unsupported" for line in said["ops"] if line["dtype"])
    if unsupported:
        yield f"{unsupported} of {sum(bool(line['dtype']) for line in said['ops'])} ops and dtypes unsupported"
    avoided = said["facts"].get("avoidances", {})
    if avoided:
        yield f"{len(avoided)} calls of the library avoided by the plugin"


def badge(level: str, suite: str) -> str:
    """A badge with the level and the suite's version."""
    left, right = "backbay", f"{level} {suite}"
    a, b = 7 * len(left) + 14, 7 * len(right) + 14
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{a + b}" height="20" role="img" aria-label="{left}: {right}">
<title>{left}: {right}</title>
<rect width="{a}" height="20" fill="#24292f"/><rect x="{a}" width="{b}" height="20" fill="{COLOURS[level]}"/>
<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="{a / 2:g}" y="14">{left}</text><text x="{a + b / 2:g}" y="14">{right}</text></g></svg>
"""
