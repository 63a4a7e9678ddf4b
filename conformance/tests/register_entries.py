"""Entries of a register for tests: a certificate as a right backend earns it, made from the drawn calls alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backbay_conformance.report.digests import sources, suite_files
from backbay_conformance.report.report import STATES
from backbay_conformance.runner.op_speeds import CALLS, TOKENS
from backbay_conformance.suite.extensions import load_extensions
from backbay_conformance.suite.profiles import STANDARD, SUITE_VERSION
from backbay_register.adding import Submission, add, frozen_environment
from backbay_register.check import check
from backbay_register.drawn_calls import Declined, RunPlan, drawn_groups
from backbay_register.entry import ENTRY, Entry, file_digests, read_json

UNSUPPORTED = "core/tri"
"""The op that the backend lacks."""
Tamper = Callable[[dict[str, Any]], object]


def certificate_of(size: str = "smoke", **more: Any) -> dict[str, Any]:
    """The certificate of a backend that supports all ops but one."""
    plan = RunPlan(STANDARD, size, 0, few_shapes=False)
    groups = {item.group for item in plan.items()}
    every = frozenset(("f32", "f16", "bf16", "i32", "i64"))
    drawn = drawn_groups(plan, {UNSUPPORTED: Declined(every)}, only=groups)
    ops = [
        line_of(group, dtype, count, group != UNSUPPORTED)
        for group, found in drawn.items()
        for dtype, count in found.dtypes.items()
    ]
    said = {
        "certificate": "backbay conformance",
        "issued": "2026-11-29T12:00:00+00:00",
        "suite": SUITE_VERSION,
        "backend": "absent",
        "opening": {},
        "seed": 0,
        "size": size,
        "few_shapes": False,
        "profiles": list(STANDARD),
        "tightness": {"core/add": {"result": 1.0}},
        "like": None,
        "facts": {
            "backend": "absent-plugin 1.0",
            "devices": ["CPU:0 a CPU"],
            "scenarios": list(load_extensions()),
        },
        "speeds": [
            {"op": op, "dtype": dtype, "tokens": n, "seconds": 0.001, "times": 2.0}
            for op, dtype in CALLS
            for n in TOKENS
        ],
        "digests": {
            "suite": sources(suite_files()),
            "plugin": "0",
            "calls": {group: found.digest for group, found in drawn.items() if found.digest},
        },
        "ops": ops,
        **more,
    }
    return summed(said)


def line_of(group: str, dtype: str, count: int, supported: bool = True) -> dict[str, Any]:
    profile, name = group.split("/")
    return {
        "profile": profile,
        "name": name,
        "dtype": dtype,
        "state": "full" if supported else "unsupported",
        "passed": count if supported else 0,
        "unsupported": 0 if supported else count,
        "refused": 0,
        "worst": 0.4 if supported and dtype else 0.0,
        "precisions": ["f32/f32"] if dtype else [],
    }


def summed(said: dict[str, Any]) -> dict[str, Any]:
    """The certificate with sums and states that follow from its lines, as a careful forger leaves it."""
    ops = said["ops"]
    total = {count: sum(line.get(count, 0) for line in ops) for count in ("passed", "unsupported", "failed")}
    refused = sum(line["refused"] for line in ops)
    states = [line["state"] for line in ops if line["dtype"]]
    said["counts"] = {**total, "failed": 0, "known": total["failed"]}
    said["states"] = {state: states.count(state) for state in STATES}
    said["planned"] = sum(total.values())
    listed = said.get("refusals", {}).get("calls", [])
    said["refusals"] = {"share": round(refused / said["planned"], 4), "calls": listed}
    return said


def entry_of(said: dict[str, Any], folder: Path, known: str = "") -> Path:
    """An entry of a certificate, with a lock file that fits to it."""
    source, lock, lines = folder / "issued.json", folder / "made.txt", folder / "known.txt"
    source.write_text(json.dumps(said))
    lock.write_text(frozen_environment() + "absent-plugin==1.0\nengine-code==3.1\n")
    lines.write_text(known)
    told = Submission("engine", "engine-code", "3.1", lock=lock, machine="a CPU, a system", known=lines)
    return add(source, told, folder / "register")


def line(said: dict[str, Any], name: str, dtype: str = "f32") -> dict[str, Any]:
    return next(each for each in said["ops"] if (each["name"], each["dtype"]) == (name, dtype))


def change_json(path: Path, change: Tamper) -> None:
    data = read_json(path)
    change(data)
    path.write_text(json.dumps(data))


def sign_again(folder: Path) -> None:
    """Compute the digests of an entry's files anew, and its suite's, as a forger does."""

    def renewed(data: dict[str, Any]) -> None:
        data["files"] = file_digests(folder)

    change_json(folder / ENTRY, renewed)
    own = Entry.read(folder)
    change_json(folder / ENTRY, lambda data: data.update(frozen=own.suite.frozen))


def refusals(folder: Path) -> dict[str, str]:
    """What contradicts an entry, and why; nothing runs again."""
    return {each.what: each.found for each in check(folder, sample=0).findings if each.agrees is False}
