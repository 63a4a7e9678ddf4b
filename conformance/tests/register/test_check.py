"""A submission is accepted as its author made it, and refused with a reason for each way of tampering with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from register_entries import (
    certificate_of,
    change_json,
    entry_of,
    line,
    refusals,
    sign_again,
    summed,
)

from backbay_register.check import check
from backbay_register.entry import BADGE, CERTIFICATE, ENTRY, KNOWN, LOCK
from backbay_register.levels import badge

Said = dict[str, Any]


@pytest.fixture(scope="module")
def honest() -> Said:
    return certificate_of()


@pytest.fixture
def folder(honest: Said, tmp_path: Path) -> Path:
    return entry_of(copy.deepcopy(honest), tmp_path)


def fail(said: Said, name: str = "neg") -> Said:
    """The record of a run in which two calls of an op fail as known."""
    own = line(said, name)
    own |= {"state": "failing", "passed": own["passed"] - 2, "failed": 2}
    one = {"item": f"core/{name}/3", "dtype": "f32", "check": "bound", "message": "1 of 1 wrong", "count": 1}
    said["failures"] = [one, {**one, "item": f"core/{name}/4"}]
    return summed(said)


def test_an_honest_entry_is_accepted(folder: Path) -> None:
    found = check(folder)
    assert found.reasons == []
    assert found.accepted
    assert found.entry.level == "reads"
    told = {each.what: each for each in found.findings}
    assert told["a sample, run again"].agrees is None
    assert told["drawn calls"].agrees
    assert told["first calls"].agrees


def test_an_entry_with_known_failures_is_accepted_and_shows_them(honest: Said, tmp_path: Path) -> None:
    said = fail(copy.deepcopy(honest))
    folder = entry_of(said, tmp_path, "core/neg/f32/bound wrong sign https://example.org/1\n")
    found = check(folder)
    assert found.reasons == []
    assert found.entry.level == "none"
    assert "2 calls fail as known" in found.as_dict()["waivers"]
    assert "--known" in found.entry.command


def test_after_a_failure_an_op_has_other_calls(honest: Said, tmp_path: Path) -> None:
    said = fail(copy.deepcopy(honest))
    line(said, "neg", "f16")["passed"] += 1
    line(said, "neg", "bf16")["passed"] -= 1
    said["digests"]["calls"]["core/neg"] = "0" * 24
    known = "core/neg/f32/bound wrong https://example.org/1\n"
    assert refusals(entry_of(summed(said), tmp_path, known)) == {}
    line(said, "neg", "bf16")["passed"] -= 1  # but as many
    assert "drawn calls" in refusals(entry_of(summed(said), tmp_path, known))


def test_what_failed_in_an_earlier_run_is_tried_again_beside_the_drawn_calls(
    honest: Said, tmp_path: Path
) -> None:
    said, known = fail(copy.deepcopy(honest)), "core/neg/f32/bound wrong https://example.org/1\n"
    planned = said["planned"]
    line(said, "neg")["failed"] += 1
    said["failures"].append({**said["failures"][0], "item": "core/neg/again"})
    said = summed(said) | {"planned": planned}
    assert refusals(entry_of(said, tmp_path, known)) == {}
    said["failures"][2]["item"] = "core/neg/5"  # one more than there are
    found = refusals(entry_of(said, tmp_path, known))
    assert {"planned calls", "drawn calls"} <= found.keys()


def test_after_three_crashes_an_op_has_fewer_calls(honest: Said, tmp_path: Path) -> None:
    said = copy.deepcopy(honest)
    own, planned = line(said, "neg"), said["planned"]
    own |= {"state": "failing", "passed": 0, "failed": 3}
    line(said, "neg", "f16")["passed"] -= 2
    one = {"item": "core/neg/0", "dtype": "f32", "check": "crash", "message": "SIGABRT", "count": 1}
    said["failures"] = [{**one, "item": f"core/neg/{n}"} for n in range(3)]
    said = summed(said) | {"planned": planned}
    known = "core/neg/f32/crash ends the process https://example.org/1\n"
    folder = entry_of(said, tmp_path, known)
    assert refusals(folder) == {}
    waiver = "calls left out, of ops that end the process again and again"
    assert any(each.endswith(waiver) for each in check(folder, sample=0).as_dict()["waivers"])
    said["failures"][0]["check"] = "bound"  # two crashes leave nothing out
    found = refusals(entry_of(said, tmp_path, known.replace("/crash", "/*")))
    assert {"planned calls", "drawn calls"} <= found.keys()


def of_sums(change: Callable[[Said], object]) -> Callable[[Said], object]:
    """A change of lines, after which the sums are right again."""

    def changed(said: Said) -> None:
        change(said)
        summed(said)

    return changed


def move_calls(said: Said) -> None:
    line(said, "exp")["passed"] += 1
    line(said, "exp", "f16")["passed"] -= 1


def leave_out(said: Said, *names: str, dtype: str | None = None) -> None:
    said["ops"] = [
        each for each in said["ops"] if each["name"] not in names or (dtype and each["dtype"] != dtype)
    ]
    if dtype is None:
        said["digests"]["calls"] = {
            group: own for group, own in said["digests"]["calls"].items() if group.split("/")[1] not in names
        }


def refuse_in_silence(said: Said) -> None:
    line(said, "exp").update(refused=2, state="partial")


def support_all(said: Said) -> None:
    for each in said["ops"]:
        each["state"] = "full" if each["dtype"] else each["state"]


def invent_speed(op: str, **more: Any) -> Callable[[Said], object]:
    one = {"op": op, "dtype": "f32", "tokens": 1, "seconds": 1e-6, "times": 900.0, **more}
    return lambda said: said["speeds"].append(one)


TAMPERED: dict[str, tuple[Callable[[Said], object], str]] = {
    "a total is raised": (lambda said: said["counts"].update(passed=99999), "passed calls"),
    "unsupported calls are hidden": (lambda said: said["counts"].update(unsupported=0), "unsupported calls"),
    "a state's number is raised": (lambda said: said["states"].update(full=500), "states"),
    "calls move from one dtype to another": (of_sums(move_calls), "drawn calls"),
    "calls are added to a line": (of_sums(lambda said: line(said, "exp").update(passed=90)), "drawn calls"),
    "a line is missing": (of_sums(lambda said: leave_out(said, "exp", dtype="f16")), "drawn calls"),
    "an op is missing": (of_sums(lambda said: leave_out(said, "exp")), "missing lines"),
    "an op is missing, and other packages are blamed": (
        of_sums(lambda said: [leave_out(said, "exp"), said["facts"].update(scenarios=["another 1.0"])]),
        "missing lines",
    ),
    "an op of another suite is there": (
        of_sums(lambda said: said["ops"].append({**line(said, "exp"), "name": "erf"})),
        "lines of other suites",
    ),
    "a line is repeated": (of_sums(lambda said: said["ops"].append(line(said, "exp"))), "repeated lines"),
    "an unsupported op is called full": (of_sums(support_all), "state of each line"),
    "refused calls are hidden": (of_sums(refuse_in_silence), "refusals"),
    "the share of refused calls is lowered": (
        lambda said: said["refusals"].update(share=0.5),
        "refusals",
    ),
    "an error is beyond its bound": (lambda said: line(said, "exp").update(worst=1.2), "errors"),
    "an error is no number": (lambda said: line(said, "exp").update(worst=float("nan")), "errors"),
    "a precision is missing": (lambda said: line(said, "exp").update(precisions=[]), "errors"),
    "the suite's digest is another": (lambda said: said["digests"].update(suite="0" * 24), "suite"),
    "the suite's version is another": (lambda said: said.update(suite="1.1"), "suite"),
    "the seed is another": (lambda said: said.update(seed=7), "seed"),
    "the calls are those of another seed": (
        lambda said: said["digests"]["calls"].update({"core/exp": "0" * 24}),
        "first calls",
    ),
    "a speed is invented": (invent_speed("exp"), "speeds"),
    "a speed is of an unsupported op": (
        lambda said: line(said, "rope").update(state="unsupported", passed=0, unsupported=3),
        "speeds",
    ),
    "a speed is infinite": (lambda said: said["speeds"][0].update(times=float("inf")), "speeds"),
    "a speed has too many digits": (lambda said: said["speeds"][0].update(seconds=1.23456e-5), "speeds"),
    "a speed is repeated": (lambda said: said["speeds"].append(dict(said["speeds"][0])), "speeds"),
    "a share is above 1": (
        lambda said: said["tightness"]["core/add"].update(result=1.5),
        "shares of tight bounds",
    ),
    "a profile is left out": (lambda said: said["profiles"].remove("errors"), "lines of other suites"),
    "few shapes are hidden": (lambda said: said.update(few_shapes=True), "flags"),
    "the date is another": (lambda said: said.update(issued="2026-01-01T00:00:00+00:00"), "date"),
}


@pytest.mark.parametrize("way", TAMPERED)
def test_a_tampered_certificate_is_refused_with_the_reason(folder: Path, way: str) -> None:
    change, reason = TAMPERED[way]
    change_json(folder / CERTIFICATE, change)
    sign_again(folder)
    found = refusals(folder)
    assert reason in found
    assert found[reason]


OF_ENTRY: dict[str, tuple[Callable[[Said], object], str]] = {
    "the level is raised": (lambda data: data.update(level="keeps the contract"), "level"),
    "the machine is missing": (lambda data: data.update(machine=""), "machine"),
    "the command is missing": (lambda data: data.update(command=""), "command"),
    "the command is of another backend": (
        lambda data: data.update(command="backbay conform ggml"),
        "command",
    ),
    "the device is another": (lambda data: data.update(device="CUDA:0"), "device"),
    "a flag is invented": (lambda data: data.update(flags=["threads=1"]), "flags"),
    "the engine is another": (lambda data: data.update(engine="onnxruntime"), "place"),
    "the version is another": (lambda data: data.update(version="3.2"), "place"),
    "the engine's code is another": (lambda data: data.update(distribution="engine-code==4"), "lock file"),
    "the engine's code is missing": (lambda data: data.update(distribution=""), "lock file"),
    "Hypothesis is missing": (lambda data: data["suite"].update(hypothesis=""), "Hypothesis"),
    "Hypothesis is another": (lambda data: data["suite"].update(hypothesis="6.1"), "Hypothesis"),
    "Hypothesis is not that of the lock file": (
        lambda data: data["suite"].update(hypothesis="6.1"),
        "lock file",
    ),
}


@pytest.mark.parametrize("way", OF_ENTRY)
def test_a_tampered_entry_is_refused_with_the_reason(folder: Path, way: str) -> None:
    change, reason = OF_ENTRY[way]
    change_json(folder / ENTRY, change)
    sign_again(folder)
    assert reason in refusals(folder)


def test_a_file_that_changed_after_it_was_added_is_refused(folder: Path) -> None:
    (folder / LOCK).write_text((folder / LOCK).read_text() + "numpy==1.0\n")
    assert "lock.txt" in refusals(folder)["files"]


def test_files_that_no_entry_has_are_refused(folder: Path) -> None:
    (folder / "page.html").write_text("<script></script>")
    (folder / "hunt.json").symlink_to("/etc/hostname")
    (folder / "folder").mkdir()
    assert refusals(folder)["other files"] == "folder, hunt.json, page.html"


def test_a_badge_of_another_level_is_refused(folder: Path) -> None:
    (folder / BADGE).write_text(badge("proven", "1.2"))
    assert refusals(folder)["badge"] == "reads"


def test_known_failures_that_are_emptied_are_refused(honest: Said, tmp_path: Path) -> None:
    folder = entry_of(
        fail(copy.deepcopy(honest)), tmp_path, "core/neg/f32/bound wrong https://example.org/1\n"
    )
    (folder / KNOWN).write_text("")
    sign_again(folder)
    assert refusals(folder) == {"known failures": "0 of 2 are lines of known-failures.txt"}


def test_a_failure_that_is_removed_is_refused(honest: Said, tmp_path: Path) -> None:
    folder = entry_of(
        fail(copy.deepcopy(honest)), tmp_path, "core/neg/f32/bound wrong https://example.org/1\n"
    )
    change_json(folder / CERTIFICATE, lambda said: said["failures"].pop())
    sign_again(folder)
    assert "listed failures" in refusals(folder)


def test_an_entry_without_a_certificate_or_with_unknown_fields_is_an_error(folder: Path) -> None:
    change_json(folder / ENTRY, lambda data: data.update(extra=1))
    with pytest.raises(Exception, match="unknown: extra"):
        check(folder, sample=0)
    change_json(folder / ENTRY, lambda data: [data.pop("extra"), data.pop("machine")])
    with pytest.raises(Exception, match="missing: machine"):
        check(folder, sample=0)
