"""Replicas: the model that they must have, and their health."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from local_links import replica_of, settings_of
from scripted_model import write_scripted_model

from backbay import BackbayError, BackendUnavailableError, ClosedError
from backbay_engine import RequestError, SlotState, State
from backbay_engine.port.questions import GetPromptSnapshot, PrepareMedia
from backbay_engine.remote import unpack_error
from backbay_engine.runner.requests.request import Score, ScoreTokens
from backbay_ray import replica as module
from backbay_ray.replica import Replica
from backbay_ray.same_model import BLOCK, WHOLE, _samples, fingerprint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "scripted.gguf")


@pytest.mark.fault(
    "a machine has another model under the same name", "its replica does not begin, and says why"
)
def test_a_replica_refuses_another_model(path: Path):
    expected = fingerprint(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(BackbayError, match=f"fingerprint is {fingerprint(path)}, not {expected}"):
        Replica(settings_of(path), "scripted", expected)


def test_a_fingerprint_is_that_of_the_files(path: Path, tmp_path: Path):
    (tmp_path / "copy").mkdir()
    copied = tmp_path / "copy" / path.name
    copied.write_bytes(path.read_bytes())
    assert fingerprint(copied) == fingerprint(path)
    assert fingerprint(path, projector=copied) != fingerprint(path)


def test_large_files_are_sampled_from_end_to_end():
    size = 100 * WHOLE
    samples = list(_samples(size))
    assert samples[0] == (0, WHOLE // 2)
    assert samples[-1] == (size - BLOCK, BLOCK)
    assert all(0 <= begin <= size - length for begin, length in samples)
    gaps = [after[0] - before[0] for before, after in pairwise(samples[1:])]
    assert max(gaps) - min(gaps) <= 1


def error_of(replica: Replica, message: Any) -> BaseException:
    """The error with which a replica answers."""

    async def answer() -> list[list[Any]]:
        return [batch async for batch in replica.stream(message)]

    begin, [error] = asyncio.run(asyncio.wait_for(answer(), 300))
    assert not begin
    assert isinstance(error, bytes)
    return unpack_error(error)


def test_only_questions_can_be_asked(path: Path):
    for question in ("close", GetPromptSnapshot([1])):
        with pytest.raises(ValueError, match="do not answer"):
            raise error_of(replica_of(path), question)


def test_an_error_is_told(path: Path):
    assert isinstance(error_of(replica_of(path), PrepareMedia(None)), RequestError)


def test_an_error_before_the_first_score_is_told(path: Path):
    replica = replica_of(path)
    replica._llm.close()

    assert isinstance(error_of(replica, ScoreTokens([1, 2], 0)), ClosedError)


def test_an_empty_prompt_is_an_error_and_takes_no_sequence(path: Path):
    replica = replica_of(path)
    for request in (ScoreTokens([], 0), Score([])):
        assert isinstance(error_of(replica, request), RequestError)
    assert not replica._port.state().busy


def test_a_model_that_stands_still_is_ill(path: Path, monkeypatch: pytest.MonkeyPatch):
    told, now = [], [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    replica = Replica(
        settings_of(path),
        "scripted",
        fingerprint(path),
        lambda name: lambda *seen: told.append((name, *seen)),
    )
    states = [State(), State((SlotState(busy=True, tokens=3),)), State((SlotState(busy=True, tokens=4),))]

    class Still:
        def state(self) -> State:
            return states[0]

    monkeypatch.setattr(replica, "_port", Still())
    for _ in range(3):  # idle for long
        now[0] += module.STALLED + 1
        replica.check_health()
    for tokens in (1, 2):  # slow
        states[0] = states[tokens]
        now[0] += module.STALLED + 1
        replica.check_health()
    now[0] += module.STALLED
    replica.check_health()
    now[0] += 1
    with pytest.raises(BackendUnavailableError, match="1 requests run"):
        replica.check_health()
    assert told[0] == ("scripted", State(), 512)
