"""Turns: parts of an encoding and steps of text take the processors one after the other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from threading import Thread
from time import sleep
from typing import Any

import pytest

from backbay import AllocationStatus, BackendMemory, DeviceMemory, Memory
from backbay_engine.media import processor_lock as module
from backbay_engine.media.processor_lock import ProcessorLock, share_processors


class Clock:
    """Time passes only where a test says so, and where a part waits for the text's time."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        return self.now

    def wait(self, seconds: float | None) -> None:
        assert seconds is not None, "nobody else is there to wait for"
        self.now += seconds


def test_a_step_waits_for_one_part_and_a_part_for_the_texts_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, time = ProcessorLock(), Clock()
    monkeypatch.setattr(module, "monotonic", time.read)
    monkeypatch.setattr(turns._changed, "wait", time.wait)
    turns.answering(True)
    with turns.part():
        time.now += 5
    with turns.step():
        assert time.now == 5
    with turns.part():
        assert time.now == 10  # the text had as long as the part before took
        time.now += 3
    turns.answering(False)
    with turns.part():
        assert time.now == 13


def test_steps_and_parts_never_run_at_the_same_time() -> None:
    turns, inside, most = ProcessorLock(), [0], [0]
    turns.answering(True)

    def run(turn: Callable[[], Any]) -> None:
        for _ in range(50):
            with turn():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                sleep(0.0005)
                inside[0] -= 1

    threads = [Thread(target=run, args=(turn,)) for turn in (turns.step, turns.part)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert most == [1]


def test_the_time_of_the_text_may_end_between_two_looks_at_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = ProcessorLock()
    turns.answering(True)

    def encode() -> None:
        with turns.part():
            pass

    monkeypatch.setattr(module, "monotonic", clock(0.0, 0.0, 1.0, 1.0))
    encode()  # takes a second, so the text has the next one
    monkeypatch.setattr(module, "monotonic", clock(1.9, 2.1))
    part = Thread(target=encode, daemon=True)
    part.start()
    part.join(300)
    assert not part.is_alive()


def clock(*readings: float) -> Callable[[], float]:
    """A clock that shows these times, and then the last for ever."""
    times = chain(readings, repeat(readings[-1]))
    return lambda: next(times)


def held_by(*ids: str) -> BackendMemory:
    """The memory of a model whose layers lie on these devices; there is a CPU in any case."""
    layer = Memory(1, AllocationStatus.Allocated)
    devices = [DeviceMemory(id, id, (layer,) if id in ids else ()) for id in dict.fromkeys(("CPU:0", *ids))]
    return BackendMemory(Memory(), devices[0], tuple(devices[1:]))


@pytest.mark.parametrize(
    ("text", "encoder", "shared"),
    [
        (["CPU:0"], ["CPU:0"], True),
        (["CPU:0"], ["CUDA:0"], False),
        (["CUDA:0"], ["CPU:0"], False),
        (["CPU:0", "CUDA:0"], ["CPU:0"], True),
        (["CUDA:0"], ["CUDA:0"], True),
        (["CUDA:0"], ["CUDA:1"], False),
        (["CUDA:0"], ["Vulkan:1"], True),
    ],
)
def test_text_and_encoder_take_turns_where_they_may_share_processors(
    text: list[str], encoder: list[str], *, shared: bool
) -> None:
    assert share_processors(held_by(*text), held_by(*encoder)) is shared
