"""Among backends that rank the same, "auto" takes the one that a trial found fastest, and remembers it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from patience import PATIENCE

from backbay import BackendEntry, BackendParams, CancelledError, Choice, OptionError
from backbay.discovery import SpeedTrial
from backbay_engine import estimate, load
from backbay_engine.port.options import LoadOptions
from backbay_engine.trials import backend_choice
from backbay_engine.trials.backend_choice import fastest_backend, run_trial
from backbay_engine.trials.model_speed import TrialSpeed
from backbay_engine.trials.trial_process import TrialLimits, TrialOutcome

ENTRIES = [BackendEntry(name, f"backbay-{name}", "1.0", "nowhere") for name in ("first", "second", "third")]
OPTIONS = LoadOptions(context=64, parallel=2, batch=512)


class Trials:
    """Trials whose backends take a set time, by a clock that only they move."""

    def __init__(self, **seconds: float | TrialOutcome) -> None:
        self.seconds, self.now, self.limits = seconds, 0.0, dict[str, TrialLimits]()

    def attempt(self, name: str, limits: TrialLimits) -> TrialOutcome:
        self.limits[name] = limits
        taken = self.seconds[name]
        if isinstance(taken, TrialOutcome):
            return taken
        self.now += 10 * taken
        return TrialOutcome(TrialSpeed(taken, {"answers": 1 / taken}), measuring=taken)

    def hold(self, seconds: float = 1000.0) -> SpeedTrial:
        entries = ENTRIES[: len(self.seconds)]
        return run_trial("model", "2 requests", entries, self.attempt, seconds, lambda: self.now)


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache folder of its own, trials allowed, and a machine that nobody else uses."""
    monkeypatch.setenv("BACKBAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BACKBAY_TRIAL_SECONDS", "50")
    monkeypatch.delenv("BACKBAY_BACKEND", raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))


def test_the_fastest_wins() -> None:
    trial = Trials(first=3.0, second=1.0, third=2.0).hold()
    assert (trial.backend, trial.lasts, trial.took) == ("second", True, 60.0)
    assert [(each.backend, each.seconds) for each in trial.speeds] == [
        ("first", 3.0),
        ("second", 1.0),
        ("third", 2.0),
    ]


def test_a_backend_that_is_little_faster_does_not_win() -> None:
    assert Trials(first=1.0, second=0.96).hold().backend == "first"
    assert Trials(first=1.0, second=0.94).hold().backend == "second"


def test_a_backend_that_cannot_run_the_model_is_passed_over_with_its_reason() -> None:
    trial = Trials(first=TrialOutcome(why_not="no such op"), second=9.0).hold()
    assert (trial.backend, trial.lasts) == ("second", True)
    assert trial.speeds[0].why_not == "no such op"
    choice = Choice(ENTRIES[0], "it works", (("oracle", "its priority is lower"),), (ENTRIES[1],))
    assert str(trial.applied(choice)).startswith("second: it takes 9 s for 2 requests, as measured on 2")
    assert str(trial.applied(choice)).endswith("(not first: no such op; not oracle: its priority is lower)")


def test_later_backends_get_the_time_that_is_left_and_a_few_times_that_of_the_best() -> None:
    trials = Trials(first=2.0, second=1.0, third=4.0)
    trials.hold(seconds=100.0)
    assert trials.limits == {
        "first": TrialLimits(100.0, None),
        "second": TrialLimits(80.0, 8.0),
        "third": TrialLimits(70.0, 5.0),
    }


def test_when_the_time_is_over_the_best_of_the_measured_ones_is_taken_for_a_day() -> None:
    trial = Trials(first=2.0, second=1.0).hold(seconds=20.0)
    assert (trial.backend, trial.lasts) == ("first", False)
    assert trial.speeds[1].why_not == "not measured: 20 s were over"


def test_without_any_speed_the_first_is_taken_for_a_day() -> None:
    trial = Trials(first=TrialOutcome(why_not="broken"), second=TrialOutcome(why_not="broken too")).hold()
    assert (trial.backend, trial.lasts) == ("first", False)


def test_a_trial_on_a_busy_machine_counts_for_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert not Trials(first=1.0, second=2.0).hold().lasts


class Installed:
    """Backends that rank the same, and how often each was measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> None:
        self.seconds, self.measured, self.version = seconds, list[str](), "1"
        self.entries = [replace(each) for each in ENTRIES[: len(seconds)]]
        monkeypatch.setattr(backend_choice, "choose", lambda _: self.choice())
        monkeypatch.setattr(backend_choice, "try_task", self.attempt)
        monkeypatch.setattr("backbay.discovery.probe.probe_all", self.probed)

    def choice(self) -> Choice:
        first, *others = self.entries
        return Choice(first, "it works", tuple((each.name, "later") for each in others), tuple(others))

    def probed(self, entries: tuple[BackendEntry, ...]) -> list[SimpleNamespace]:
        return [SimpleNamespace(entry=each, details={"library": self.version}) for each in entries]

    def attempt(
        self, task: backend_choice.TrialTask, limits: TrialLimits, waiting: Callable[[], None]
    ) -> TrialOutcome:
        self.measured.append(task.backend)
        assert task.options.context == 64
        self.options = task.options
        return TrialOutcome(TrialSpeed(self.seconds[task.backend], {}))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    return Installed(monkeypatch, {"first": 2.0, "second": 1.0})


def test_a_trial_is_remembered_for_a_model_a_load_and_a_library(installed: Installed, path: Path) -> None:
    def chosen(options: LoadOptions = OPTIONS) -> str:
        choice = fastest_backend(path, None, options)
        assert choice is not None
        return choice.name

    for _ in range(2):
        assert chosen() == chosen(replace(OPTIONS, context=128)) == "second"
        assert installed.measured == ["first", "second"]
    for change in (
        lambda: chosen(replace(OPTIONS, parallel=3)),
        lambda: chosen(replace(OPTIONS, kv_dtype="q8_0")),
        lambda: chosen(replace(OPTIONS, params=BackendParams(num_threads=1))),
        lambda: chosen(replace(OPTIONS, num_gpu_layers=0)),
        lambda: chosen(replace(OPTIONS, main_gpu=1)),
        lambda: chosen(replace(OPTIONS, tensor_split=(1, 2))),
    ):
        installed.measured.clear()
        assert change() == change() == "second"
        assert installed.measured == ["first", "second"]
    installed.measured.clear()
    installed.version = "2"
    chosen()
    assert installed.measured == ["first", "second"]


def test_a_trial_places_layers_as_the_load_does(installed: Installed, path: Path) -> None:
    fastest_backend(path, None, replace(OPTIONS, num_gpu_layers=3, main_gpu=1, tensor_split=(1, 2)))
    tried = installed.options
    assert (tried.num_gpu_layers, tried.main_gpu, tried.tensor_split) == (3, 1, (1, 2))


@pytest.mark.fault(
    "two processes that open a model for the first time at once", "the second takes the verdict of the first"
)
def test_of_two_that_start_together_one_waits_for_the_other(
    installed: Installed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's trial ends only when the second one has come to its lock, and has looked at it twice."""
    looks, twice = list[None](), Event()

    def look(cancel: object) -> None:
        looks.append(None)
        if len(looks) == 2:
            twice.set()

    def attempt(
        task: backend_choice.TrialTask, limits: TrialLimits, waiting: Callable[[], None]
    ) -> TrialOutcome:
        assert twice.wait(PATIENCE)
        return installed.attempt(task, limits, waiting)

    monkeypatch.setattr(backend_choice, "check_cancel", look)
    monkeypatch.setattr(backend_choice, "try_task", attempt)
    with ThreadPoolExecutor(2) as pool:
        choices = list(pool.map(lambda _: fastest_backend(path, None, OPTIONS), range(2)))
    assert [choice.name for choice in choices if choice is not None] == ["second", "second"]
    assert installed.measured == ["first", "second"]


def test_a_trial_that_waits_for_another_one_can_be_cancelled(
    installed: Installed, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel, entered = Event(), Event()

    def attempt(
        task: backend_choice.TrialTask, limits: TrialLimits, waiting: Callable[[], None]
    ) -> TrialOutcome:
        entered.set()
        assert ended.wait(PATIENCE)
        return installed.attempt(task, limits, waiting)

    ended = Event()
    monkeypatch.setattr(backend_choice, "try_task", attempt)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(fastest_backend, path, None, OPTIONS)
        assert entered.wait(PATIENCE)
        cancel.set()
        with pytest.raises(CancelledError):
            fastest_backend(path, None, OPTIONS, cancel)
        ended.set()
        assert first.result() is not None


def test_another_model_has_a_trial_of_its_own(installed: Installed, path: Path, tmp_path: Path) -> None:
    from small_llama import write_small_llama

    fastest_backend(path, None, OPTIONS)
    fastest_backend(write_small_llama(tmp_path / "alike.gguf", seed=8), None, OPTIONS)
    assert len(installed.measured) == 4  # the file's name tells people which model it is
    fastest_backend(write_small_llama(tmp_path / path.name, layers=3), None, OPTIONS)
    assert len(installed.measured) == 6


@pytest.mark.parametrize("kept", ["{", "[]", '{"speeds": 5}', "null"])
def test_a_damaged_record_is_made_anew(installed: Installed, path: Path, tmp_path: Path, kept: str) -> None:
    fastest_backend(path, None, OPTIONS)
    (record,) = (tmp_path / "cache" / "speeds").glob("*.json")
    assert json.loads(record.read_text())["backend"] == "second"
    record.write_text(kept)
    fastest_backend(path, None, OPTIONS)
    assert len(installed.measured) == 4


def test_a_record_that_names_no_installed_backend_is_not_taken(
    installed: Installed, path: Path, tmp_path: Path
) -> None:
    fastest_backend(path, None, OPTIONS)
    (record,) = (tmp_path / "cache" / "speeds").glob("*.json")
    record.write_text(record.read_text().replace('"second"', '"gone"'))
    choice = fastest_backend(path, None, OPTIONS)
    assert choice is not None
    assert choice.name == "second"


def test_one_backend_a_named_backend_and_a_limit_of_zero_need_no_trial(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    alone = Installed(monkeypatch, {"first": 2.0})
    choice = fastest_backend(path, "auto", OPTIONS)
    assert choice is not None
    assert choice.name == "first"
    several = Installed(monkeypatch, {"first": 2.0, "second": 1.0})
    assert fastest_backend(path, "first", OPTIONS) is None
    monkeypatch.setenv("BACKBAY_BACKEND", "first")
    assert fastest_backend(path, None, OPTIONS) is None
    monkeypatch.delenv("BACKBAY_BACKEND")
    monkeypatch.setenv("BACKBAY_TRIAL_SECONDS", "0")
    choice = fastest_backend(path, None, OPTIONS)
    assert choice is not None
    assert choice.name == "first"
    assert alone.measured == several.measured == []


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "long"])
def test_a_limit_that_is_no_number_of_seconds_is_refused(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, path: Path, wrong: str
) -> None:
    monkeypatch.setenv("BACKBAY_TRIAL_SECONDS", wrong)
    with pytest.raises(OptionError, match="BACKBAY_TRIAL_SECONDS must be a number of seconds"):
        fastest_backend(path, None, OPTIONS)


def test_an_estimate_makes_no_trial_and_knows_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    installed = Installed(monkeypatch, {"first": 2.0, "second": 1.0})
    reference = "trial_backends:Steady"
    installed.entries[1] = replace(installed.entries[1], name=reference)
    installed.seconds[reference] = 1.0
    installed.entries[0] = replace(installed.entries[0], name="trial_backends:Refusing")
    installed.seconds["trial_backends:Refusing"] = 2.0
    estimate(path, parallel=2, context=64)
    assert installed.measured == []
    with load(path, parallel=2, context=64) as llm:
        assert llm.backend.name == reference
        assert llm.choice is not None
        assert llm.choice.reason.startswith("it takes 1 s for 2 requests at once")
    made = len(installed.measured)
    estimate(path, parallel=2, context=64)
    assert len(installed.measured) == made == 2


def test_a_model_that_is_loaded_on_a_named_backend_has_no_choice(path: Path) -> None:
    with load(path, "cpu_ref", context=64) as llm:
        assert llm.choice is None
