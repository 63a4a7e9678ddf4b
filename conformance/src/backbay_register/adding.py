"""Writing an entry of the register, from a certificate or from the report of a run that earned none."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from backbay import BackbayError
from backbay_conformance.report.certificate import CERTIFIED, OF_AN_OP, TITLE
from backbay_conformance.runner.selection import CALLS_BY_SIZE

from .entry import (
    BADGE,
    CERTIFICATE,
    HUNT,
    KNOWN,
    LOCK,
    OTHER_SEEDS,
    VERIFICATION,
    Entry,
    SuiteIdentity,
    file_digests,
    normal,
    read_json,
    read_record,
    usual_command,
)
from .entry import locked as locked_in
from .levels import badge, level_of

OF_A_FAILURE = ("item", "dtype", "check", "message", "call", "script", "count")
OF_A_HUNT = "profile", "name", "dtype", "extremes"
LONGEST = 400  # characters of a failure's message
FOLDERS = re.compile(r"(?<![\w.:/-])/(?:[^\s/:'\"]+/)+")
"""The folders of a file in a message: they are those of the machine, or of who built the engine."""
UNSAFE = set('/\\:*?"<>| ')


@dataclass(frozen=True)
class Submission:
    """What its author says of an entry; what is empty is read from this machine and its environment."""

    engine: str
    distribution: str = ""
    version: str = ""
    title: str = ""
    command: str = ""
    machine: str = ""
    note: str = ""
    known: Path | None = None
    lock: Path | None = None
    hunt: Path | None = None


def add(source: Path, told: Submission, register: Path) -> Path:
    """Write the folder of an entry, and give its path. A run of a smaller size replaces no entry."""
    said = record_of(read_json(source), source)
    own = version_of(told)
    folder = register / _safe(told.engine) / _safe(own)
    if (folder / CERTIFICATE).exists():
        sizes, there = list(CALLS_BY_SIZE), read_record(folder / CERTIFICATE)["size"]
        if sizes.index(said["size"]) < sizes.index(there):
            raise BackbayError(
                f"{folder} stays: it tells of a run of size {there}, and this was one of size {said['size']}; "
                "remove it first, if this one is to replace it"
            )
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / CERTIFICATE, said)
    (folder / LOCK).write_text(told.lock.read_text() if told.lock else frozen_environment())
    (folder / KNOWN).write_text(told.known.read_text() if told.known else "# none\n")
    if told.hunt:
        _write_json(folder / HUNT, hunt_of(read_json(told.hunt)))
    level = earned_level(folder, said)
    (folder / BADGE).write_text(badge(level, said["suite"]))
    hypothesis = locked_in(folder).get("hypothesis", "")
    suite = SuiteIdentity(said["suite"], said.get("digests", {}).get("suite", ""), said["seed"], hypothesis)
    Entry(
        engine=told.engine,
        title=told.title or told.engine,
        version=own,
        distribution=_line(told.distribution or told.engine, folder),
        flags=flags_of(said),
        device=device_of(said),
        command=told.command or usual_command(said),
        machine=told.machine or this_machine(),
        date=said["issued"][:10],
        level=level,
        suite=suite,
        frozen=suite.frozen,
        note=told.note,
        files=file_digests(folder),
    ).write(folder)
    return folder


def earned_level(folder: Path, said: Mapping[str, Any]) -> str:
    """The level of a certificate, with those of other seeds and the verification that lie beside it."""
    others = [read_record(folder / name) for name in OTHER_SEEDS if (folder / name).is_file()]
    path = folder / VERIFICATION
    verified = read_json(path) if path.is_file() else {}
    of_this = verified.get("certificate", {}).get("issued") == said["issued"]
    return level_of(said, others, verified=of_this and verified.get("holds") is True)


def record_of(data: dict[str, Any], source: Path) -> dict[str, Any]:
    """The certificate itself, or what a report has of one, with the failures that stand against it."""
    if data.get("certificate") == TITLE:
        return data
    if "cells" not in data or "digests" not in data:
        raise BackbayError(f"{source} is neither a certificate nor a report of `backbay conform --json`")
    if data["stopped"] or data["hunt"]:
        raise BackbayError(f"{source} is no whole run of the usual calls")
    failures = [*data["failures"], *data["known_failures"]]
    return {
        "certificate": TITLE,
        "issued": data["issued"],
        **{key: data[key] for key in CERTIFIED},
        "digests": data["digests"],
        "ops": [{key: cell[key] for key in (*OF_AN_OP, "failed")} for cell in data["cells"]],
        "failures": [_failure(each) for each in failures],
    }


def hunt_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """The worst elements of a hunt."""
    if not report.get("hunt"):
        raise BackbayError("the hunt's report is of a run without --hunt")
    head = {key: report[key] for key in ("suite", "backend", "opening", "seed", "hunt", "facts")}
    cells = [{key: cell[key] for key in OF_A_HUNT} for cell in report["cells"] if cell["extremes"]]
    return {**head, "worst": cells}


def flags_of(said: Mapping[str, Any]) -> list[str]:
    options = said["opening"].get("options", {})
    few = ["--few-shapes"] if said.get("few_shapes") else []
    return [*(f"{name}={value}" for name, value in options.items()), *few]


def device_of(said: Mapping[str, Any]) -> str:
    """The device that the run was placed on, or the backend's devices, of which it chose."""
    chosen = said["opening"].get("device", "")
    named = [device for device in said["facts"]["devices"] if not chosen or device.split()[0] == chosen]
    return ", ".join(named) or chosen


def version_of(told: Submission) -> str:
    if told.version:
        return told.version
    try:
        return version(told.distribution or told.engine)
    except PackageNotFoundError as error:
        raise BackbayError(
            f"no distribution {error.name} is installed: give --version, and --distribution"
        ) from None


def frozen_environment() -> str:
    """Each distribution of this environment, with its version: the first on the path, as an import takes it."""
    found = {normal(each.metadata["Name"]): each.version for each in reversed(list(distributions()))}
    return "".join(f"{name}=={found[name]}\n" for name in sorted(found))


def this_machine() -> str:
    """The processor and the system, without the machine's name."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    libc = " ".join(filter(None, platform.libc_ver()))
    return f"{model} ({platform.machine()}), {platform.system()} {platform.release().split('-')[0]}, {libc}"


def _failure(outcome: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: outcome[key] for key in OF_A_FAILURE if key in outcome}
    return {**own, "message": FOLDERS.sub("", own.get("message", ""))[:LONGEST]}


def _line(distribution: str, folder: Path) -> str:
    name = normal(distribution)
    return f"{name}=={locked_in(folder).get(name, '?')}" if name else ""


def _safe(name: str) -> str:
    if not name or UNSAFE & set(name) or name.startswith("."):
        raise BackbayError(f"{name!r} is no name of a folder")
    return name


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n")
