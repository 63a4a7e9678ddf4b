"""The speed that a trial measures, by a clock that only the steps of the engine move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from model_files import unpacked

from backbay import BackendParams
from backbay_engine.local.port import LocalPort
from backbay_engine.port.options import LoadOptions
from backbay_engine.steps.step import Step
from backbay_engine.trials import model_speed
from backbay_engine.trials.model_speed import ROOM, measure_speed

Opened = Callable[..., tuple[LocalPort, "Timed"]]


class Timed:
    """A clock, and an engine whose steps take a set time, and a time for each column."""

    def __init__(self, engine: LocalPort, step: float, column: float, first: float = 0.0) -> None:
        self.now, self.sizes = 0.0, list[int]()
        run = engine.step_cache.run

        def timed(asked: Step, *rest: Any) -> Any:
            self.now += step + column * asked.size + (0.0 if self.sizes else first)
            self.sizes.append(asked.size)
            return run(asked, *rest)

        engine.step_cache.run = timed  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def opened(path: Path) -> Iterator[Opened]:
    made: list[LocalPort] = []

    def opened(parallel: int, *how: float, file: Path = path) -> tuple[LocalPort, Timed]:
        options = LoadOptions(context=ROOM, parallel=parallel, params=BackendParams(num_threads=1))
        engine = LocalPort(file, "cpu_ref", options)
        made.append(engine)
        engine.load()
        return engine, Timed(engine, *how)

    yield opened
    for engine in made:
        engine.close()


@pytest.mark.parametrize("parallel", [1, 3, 8])
def test_a_prompt_and_a_step_of_all_sequences_are_timed(
    opened: Opened, parallel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_speed, "PATIENCE", 300.0)  # however slow this machine is
    engine, clock = opened(
        parallel, 0.01, 0.001, 0.5
    )  # the first run of all takes longer, and does not count
    speed = measure_speed(engine, parallel, clock)
    read, step = (0.01 + 64 * 0.001) / 64, 0.01 + parallel * 0.001
    assert speed.rates == pytest.approx({"prompt": 1 / read, "answers": parallel / step})
    assert speed.seconds == pytest.approx(parallel * 256 * read + 128 * step)
    assert clock.sizes[:4] == [64] * 4
    assert clock.sizes.count(parallel) >= 11


def test_a_slow_engine_is_measured_a_few_times_only(opened: Opened) -> None:
    engine, clock = opened(1, 3.0, 0.0)
    speed = measure_speed(engine, 1, clock)
    assert clock.sizes[:3] == [64, 64, 8]
    assert speed.rates == pytest.approx({"prompt": 64 / 3, "answers": 1 / 3})


def test_three_tokens_are_enough_when_the_time_is_over(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = opened(2, 1.0, 0.0)
    monkeypatch.setattr(model_speed, "PATIENCE", 0.0)  # no real time is waited
    assert measure_speed(engine, 2, clock).rates == pytest.approx({"prompt": 64, "answers": 2})


def test_an_encoder_embeds_texts(opened: Opened, tmp_path: Path) -> None:
    engine, clock = opened(3, 0.01, 0.001, file=unpacked("bert", tmp_path))
    assert not engine.facts.generates
    speed = measure_speed(engine, 3, clock)
    assert speed.seconds > 0
    assert speed.rates == pytest.approx({"texts": 3 / speed.seconds})
