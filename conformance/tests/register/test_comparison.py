"""Two certificates: what became better, worse, faster and slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run_command
from register_entries import line_of, summed

from backbay_register.compare_command import command
from backbay_register.comparison import compare

Said = dict[str, Any]


def said_of(*lines: Said, speed: float = 4.0, **more: Any) -> Said:
    speeds = [{"op": "add", "dtype": "f32", "tokens": 1, "seconds": 0.1, "times": speed}]
    head = {
        "certificate": "backbay conformance",
        "suite": "1.2",
        "backend": "some",
        "size": "default",
        "seed": 0,
    }
    facts = {"devices": ["CPU:0"], "machine": "x86_64"}
    return summed(
        {**head, "digests": {"suite": "1"}, "facts": facts, "speeds": speeds, "ops": list(lines), **more}
    )


def op(name: str, **more: Any) -> Said:
    return {**line_of(f"core/{name}", "f32", 9), **more}


BEFORE = said_of(
    op("exp"), op("neg", state="failing", failed=2), op("silu", worst=0.2), op("cos", worst=0.001), op("tri")
)
AFTER = said_of(
    op("exp", state="failing", failed=3),
    op("neg"),
    op("silu", worst=0.9),
    op("cos", worst=0.01),
    op("rope"),
    speed=2.0,
)


def test_states_and_errors_become_better_or_worse() -> None:
    found = compare(BEFORE, AFTER)
    assert {(each.what, each.kind) for each in found.worse} == {
        ("core exp f32", "state"),
        ("core silu f32", "error"),
    }
    assert [(each.what, each.before, each.after) for each in found.better] == [
        ("core neg f32", "failing, 2 failed", "full")
    ]
    assert {each.what for each in found.other} == {"core tri f32", "core rope f32"}
    assert [each.what for each in found.slower] == ["add f32 1 tokens"]
    assert compare(AFTER, BEFORE).faster


def test_nothing_changed_between_equal_certificates() -> None:
    found = compare(BEFORE, BEFORE)
    assert not any((found.better, found.worse, found.faster, found.slower, found.other, found.notes))


def test_a_composite_is_as_right_as_a_kernel() -> None:
    found = compare(said_of(op("exp")), said_of(op("exp", state="composite")))
    assert not found.worse
    assert found.other[0].after == "composite"


def test_errors_under_other_bounds_are_not_compared() -> None:
    after = said_of(op("exp", worst=0.99, precisions=["f16/f16"]))
    found = compare(said_of(op("exp", worst=0.1)), after)
    assert not found.worse
    assert [each.kind for each in found.other] == ["precision"]


def test_a_line_that_fails_has_no_better_error() -> None:
    after = said_of(op("exp", state="failing", failed=2, worst=0.01))
    found = compare(said_of(op("exp", worst=0.3)), after)
    assert [each.kind for each in found.worse] == ["state"]
    assert not found.better


def test_other_suites_and_devices_are_told() -> None:
    after = said_of(
        op("exp"), suite="1.3", digests={"suite": "2"}, facts={"devices": ["GPU"], "machine": "x86_64"}
    )
    told = " ".join(compare(said_of(op("exp")), after).notes)
    for part in ("suite: 1.2, then 1.3", "errors are not compared", "devices"):
        assert part in told


def test_other_options_are_told() -> None:
    after = said_of(op("exp"), opening={"options": {"library": "other.so", "avoid": "nothing"}})
    found = compare(said_of(op("exp")), after)
    assert found.notes == ["options: none, then avoid=nothing, library=other.so"]


def test_errors_of_runs_of_other_sizes_are_not_compared() -> None:
    found = compare(said_of(op("exp", worst=0.1)), said_of(op("exp", worst=0.9), size="nightly"))
    assert not found.worse
    assert found.notes[0] == "size: default, then nightly"


def test_what_only_a_larger_run_drew_is_no_change() -> None:
    scenario = {"state": "unsupported", "passed": 0, "unsupported": 1}
    lines = line_of("core/rows_alone", "", 1), line_of("core/chunk", "f16", 3)
    found = compare(said_of(lines[0] | scenario, size="smoke"), said_of(*lines))
    assert not found.better
    assert [each.what for each in found.other] == ["core rows_alone"]
    assert found.notes[-1] == "1 lines are of one side alone, as its calls drew these dtypes"


def test_the_command_shows_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, said in zip(paths, (BEFORE, AFTER), strict=True):
        path.write_text(json.dumps(said))
    assert run_command(command, *map(str, paths)) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("a.json -> b.json\n")
    assert "worse: 2" in shown
    assert "4 x the reference" in shown
    assert run_command(command, str(paths[0]), str(paths[0])) == 0
    assert "nothing changed" in capsys.readouterr().out
    assert run_command(command, *map(str, paths), "--json") == 1
    assert json.loads(capsys.readouterr().out)["worse"][0]["what"] == "core exp f32"
