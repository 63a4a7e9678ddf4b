"""A run that was stopped goes on where it ended, and makes the report that it would have made."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import conform

from backbay_conformance import Outcome, Report, run
from backbay_conformance.runner.selection import SelectionError
from backbay_conformance.suite.profiles import FIRST_ROUND

OPS = ["neg", "add", "sqrt"]


def tried(most: int = 10**6, **more: object) -> tuple[Report, list[str]]:
    """A run, which is stopped after more than `most` items, and the items that it has run."""
    seen: list[str] = []

    def progress(outcome: Outcome, total: int) -> None:
        seen.append(outcome.item)

    def stop() -> str:
        return "enough" if len(seen) > most else ""

    return run("cpu_ref", in_process=False, ops=OPS, progress=progress, stop=stop, **more), seen  # type: ignore[arg-type]


def test_a_run_that_was_stopped_goes_on(cache: Path) -> None:
    whole, all_items = tried()
    runs = cache / "runs"
    assert list(runs.iterdir()) == []  # it came to its end
    stopped, first = tried(most=4 * FIRST_ROUND)
    assert stopped.stopped == "enough"
    assert 0 < len(first) < len(all_items)
    with next(runs.iterdir()).open("a") as file:
        file.write('{"item": "core/neg/')  # as a killed process leaves it
    resumed, second = tried(resume=True)
    assert resumed.ok
    assert len(second) < len(all_items)
    assert set(first) | set(second) == set(all_items)
    assert resumed.counts == whole.counts
    assert resumed.digests == whole.digests
    assert list(runs.iterdir()) == []


def test_what_was_not_stopped_cannot_go_on() -> None:
    with pytest.raises(
        SelectionError, match="no run of this backend, as it is now, with these arguments was stopped"
    ):
        conform("cpu_ref", "--op", "neg", "--size", "tiny", "--resume")


def test_failures_are_told_and_written_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "failures"
    words = ("--op", "tanh", "--size", "smoke", "--failures", str(folder), "--time-limit", "1000")
    assert conform("broken_backends:Imprecise", *words, "--max-failures", "1") == 1
    assert "FAILED core/tanh/" in capsys.readouterr().err
    assert len(list(folder.iterdir())) == 1


def test_a_resumed_run_also_writes_the_failures_of_the_stopped_one(tmp_path: Path) -> None:
    words = ("broken_backends:Imprecise", "--op", "neg,tanh", "--profile", "core", "--jobs", "1")
    conform(*words, "--max-failures", "10", "--failures", str(tmp_path / "first"))
    conform(*words, "--resume", "--failures", str(tmp_path / "both"))
    first, both = ({path.name for path in (tmp_path / name).iterdir()} for name in ("first", "both"))
    ended = first & {f"core-tanh-{turn}.json" for turn in range(FIRST_ROUND)}  # the round that had run
    assert ended and ended <= both
