"""What trials found of the speeds of backends: kept between processes, and shown by doctor."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from environment import GOOD, Environment

from backbay import BackendEntry, Choice
from backbay.discovery import BackendSpeed, SpeedTrial, TrialFile
from backbay.discovery.records import kept_trials

EQUAL = GOOD.replace("kernels = kernel\n", "kernels = kernel\n        priority = 0\n")
ENTRIES = tuple(BackendEntry(name, f"backbay-{name}", "1.0", f"{name}_plugin") for name in ("a", "b"))
CHOICE = Choice(ENTRIES[0], "it works", (("b", "its name comes later"), ("c", "it has no GPU")), ENTRIES[1:])
KEEP = """
    import time
    from backbay import choose
    from backbay.discovery import BackendSpeed, TrialFile, SpeedTrial, version_of

    choice = choose("auto")
    print([entry.name for entry in choice.equals])
    speeds = (
        BackendSpeed("a", version_of(choice.entry), why_not="no such op"),
        BackendSpeed("b", "backbay-b 1.0", 2.5, {"prompt": 512.4, "answers": 33.3}),
    )
    trial = SpeedTrial("small.gguf, llama, 1.0 MiB", "4 requests at once", "b", speeds, 7.0, time.time(), True)
    TrialFile(choice, "small.gguf", ["a model"]).keep(trial)
    print(TrialFile(choice, "small.gguf", ["a model"]).recall() == trial)
    print(TrialFile(choice, "small.gguf", ["another one"]).recall())
"""


def trial(lasts: bool = True, ago: float = 0.0, **seconds: float | None) -> SpeedTrial:
    speeds = tuple(
        BackendSpeed(name, "1", taken, why_not="" if taken else "stopped") for name, taken in seconds.items()
    )
    return SpeedTrial("model", "1 request", "a", speeds, 1.0, time.time() - ago, lasts)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TrialFile:
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("backbay.discovery.probe.probe_all", lambda _: [])
    kept = TrialFile(CHOICE, "model", [])
    kept._names = {"a", "b"}
    return kept


def test_a_trial_is_kept_and_doctor_shows_it(environment: Environment) -> None:
    environment.install_backend("a", EQUAL)
    environment.install_backend("b", EQUAL)
    day = time.strftime("%Y-%m-%d")
    assert environment.python(KEEP).stdout.splitlines() == ["['b']", "True", "None"]
    said = environment.backbay("doctor").stdout
    assert "speeds of backends that rank the same" in said
    rows = [line.split("  ") for line in said.splitlines() if line.startswith("  small.gguf, llama, 1.0 MiB")]
    (first, second) = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert first[1:-1] == ["4 requests at once", "b", "2.5", "prompt 512, answers 33"]
    assert second[1:-1] == ["4 requests at once", "a", "-", "no such op"]
    assert first[-1] == second[-1]
    assert first[-1] in {day, time.strftime("%Y-%m-%d")}
    (told,) = json.loads(environment.backbay("doctor", "--json").stdout)["speeds"]
    assert (told["backend"], told["load"], told["took"]) == ("b", "4 requests at once", 7.0)
    assert [each["seconds"] for each in told["speeds"]] == [None, 2.5]
    assert environment.backbay("cache", "clear", "speeds").returncode == 0
    assert "speeds of backends" not in environment.backbay("doctor").stdout


def test_doctor_leaves_out_backends_that_are_not_installed(environment: Environment) -> None:
    for name in ("a", "b"):
        environment.install_backend(name, EQUAL)
    environment.python(KEEP)
    shutil.rmtree(environment.site / "backbay_a-1.0.dist-info")
    assert "speeds of backends" not in environment.backbay("doctor").stdout


def test_doctor_leaves_out_what_is_damaged(environment: Environment) -> None:
    environment.install_backend("a", EQUAL)
    environment.install_backend("b", EQUAL)
    environment.python(KEEP)
    (kept,) = (environment.cache / "speeds").glob("*.json")
    kept.write_text(kept.read_text()[:-20])
    done = environment.backbay("doctor")
    assert done.returncode == 0
    assert "speeds of backends" not in done.stdout


def test_a_backend_that_ranks_otherwise_is_no_equal(environment: Environment) -> None:
    environment.install_backend("a", EQUAL)
    environment.install_backend("b", EQUAL.replace("priority = 0", "priority = -1"))
    environment.install_backend("c", GOOD)
    assert environment.python("import backbay; print(backbay.choose('auto').equals)").stdout == "()\n"


def test_the_choice_of_a_trial_tells_the_times() -> None:
    made = trial(a=2.0, b=3.25)
    chosen = made.applied(CHOICE)
    day = time.strftime("%Y-%m-%d", time.localtime(made.time))
    assert str(chosen) == (
        f"a: it takes 2 s for 1 request, as measured on {day} (not b: it takes 3.25 s; not c: it has no GPU)"
    )
    assert "not b: it takes 1.95 s (too little less to count)" in str(trial(a=2.0, b=1.95).applied(CHOICE))
    assert str(trial(a=None, b=None).applied(CHOICE)).startswith(
        "a: it ranks first, and a trial did not finish (stopped)"
    )


def test_a_trial_that_does_not_last_counts_for_a_day(place: TrialFile) -> None:
    for found in (trial(a=1.0), trial(a=1.0, ago=80 * 86400), trial(lasts=False, a=1.0)):
        place.keep(found)
        assert place.recall() == found
    place.keep(trial(lasts=False, ago=86401, a=1.0))
    assert place.recall() is None


@pytest.mark.fault("the clock goes back by a year", "a trial from the future does not count")
def test_a_trial_from_the_future_does_not_count_for_a_year(place: TrialFile) -> None:
    place.keep(trial(lasts=False, ago=-365 * 86400, a=1.0))
    assert place.recall() is None


def test_a_trial_of_another_backend_does_not_count(place: TrialFile) -> None:
    place.keep(trial(a=1.0, gone=2.0))
    assert place.recall() is None


@pytest.mark.parametrize(
    "field", [{"took": 10**400}, {"time": 1e300}, {"time": 1e17}, {"time": float("nan")}]
)
def test_a_trial_with_numbers_that_cannot_be_does_not_count(
    place: TrialFile, tmp_path: Path, field: dict[str, float]
) -> None:
    place.keep(trial(a=1.0))
    (kept,) = (tmp_path / "speeds").iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), **field}))
    assert place.recall() is None
    assert kept_trials() == []


def test_a_trial_that_is_older_than_three_months_does_not_count(place: TrialFile, tmp_path: Path) -> None:
    place.keep(trial(a=1.0))
    (kept,) = (tmp_path / "speeds").glob("*.json")
    os.utime(kept, (0, 0))
    assert place.recall() is None
