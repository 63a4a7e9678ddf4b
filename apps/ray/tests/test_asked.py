"""Answers that lose their replicas: each is the answer of an undisturbed run, wherever the replica is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest
from local_links import UNASKED, LocalReplicas, model_of, replica_of, running_loop
from patience import wait_until
from scripted_model import write_scripted_model

from backbay import BackendUnavailableError, ClosedError
from backbay_engine import (
    LLM,
    Completion,
    ContextOverflowError,
    DeadlineError,
    LogitsError,
    QueueFullError,
    RequestError,
    Rows,
    TokenStep,
    load,
)
from backbay_engine.text.formats import constraint_maker
from backbay_ray import link, replica
from backbay_ray.replica import Replica

ANSWERS: list[tuple[str, dict[str, Any]]] = [
    ("hello", {"temperature": 0}),
    ("quiet", {"temperature": 0}),
    ("euro", {"temperature": 0}),
    ("half", {"temperature": 0}),
    ("count", {"temperature": 0, "max_tokens": 9}),
    ("stops", {"temperature": 0, "stop": ["STOP"]}),
    ("stops", {"temperature": 0, "stop": ["END", "zzz"]}),
    ("almost", {"temperature": 0, "stop": ["STOP"]}),
    ("dice", {"seed": 11, "max_tokens": 12}),
    (
        "dice",
        {"seed": 12, "max_tokens": 9, "logprobs": 3, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    ),
    ("euro", {"temperature": 0, "logprobs": 1}),
    ("json", {"seed": 1, "response_format": {"type": "json_object"}}),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture(scope="module")
def alone(path: Path) -> Iterator[LLM]:
    with load(path, "cpu_ref", context=512, parallel=4, num_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as made:
        yield made


@pytest.fixture(scope="module")
def replicas(path: Path) -> tuple[Replica, Replica]:
    return replica_of(path), replica_of(path)


def asked(llm: LLM, prompt: Any, **options: Any) -> tuple[Completion, list[Any]]:
    """The result, and what was told step by step."""
    told: list[Any] = []
    found = llm.submit(prompt, on_step=told.append, **options).result(300)
    assert told.pop() is found
    return found, told


def require_equal(found: tuple[Completion, list[Any]], expected: tuple[Completion, list[Any]]) -> None:
    (whole, steps), (wanted, wanted_steps) = found, expected
    assert (whole.text, whole.tokens) == (wanted.text, wanted.tokens)
    assert (whole.finish_reason, whole.stop) == (wanted.finish_reason, wanted.stop)
    assert whole.logprobs == wanted.logprobs
    assert (whole.timings.prompt_tokens, whole.timings.tokens) == (
        wanted.timings.prompt_tokens,
        wanted.timings.tokens,
    )
    assert "".join(step.text for step in steps) == wanted.text
    assert [token for step in steps for token in step.tokens] == wanted.tokens
    assert [step for step in steps if step.finish_reason] == steps[-1:]
    assert steps == wanted_steps


@pytest.mark.fault(
    "a replica is lost in mid-answer, wherever: in a character, in a stop string, with a seed, with log-probabilities",
    "another goes on; the client sees one undisturbed answer",
)
@pytest.mark.parametrize(("script", "options"), ANSWERS)
def test_an_answer_goes_on_wherever_its_replica_is_lost(
    script: str,
    options: dict[str, Any],
    alone: LLM,
    replicas: tuple[Replica, Replica],
    loop: asyncio.AbstractEventLoop,
):
    expected = asked(alone, f"[{script}]", **options)
    for cut in range(len(expected[1]) + 1):
        asked_replicas = LocalReplicas(replicas, cuts=[cut])
        with model_of(asked_replicas, loop) as llm:
            require_equal(asked(llm, f"[{script}]", **options), expected)
        assert len(asked_replicas.sessions) == 2
        wait_until(asked_replicas.is_idle)


def test_an_answer_outlives_many_replicas(
    alone: LLM, replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    options = {"seed": 3, "max_tokens": 30, "logprobs": 1}
    expected = asked(alone, "[dice]", **options)
    asked_replicas = LocalReplicas(
        replicas, cuts=[UNASKED, 0, 1, 0, 0, 2, UNASKED, UNASKED, 1, *repeat(1, 30)]
    )
    with model_of(asked_replicas, loop) as llm:
        require_equal(asked(llm, "[dice]", **options), expected)
    assert len(asked_replicas.sessions) > 30


def test_an_answer_without_a_seed_goes_on_with_the_same_choices(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    with model_of(LocalReplicas(replicas, cuts=repeat(1, 30)), loop) as llm:
        found, steps = asked(llm, "[dice]", max_tokens=30)
    assert found.text == "".join(step.text for step in steps)
    assert set(found.text[0::2]) <= set("123456")
    assert set(found.text[1::2]) == {" "}


@pytest.mark.fault(
    "a request kills every replica that takes it", "it fails after a few; it is not given to all"
)
def test_a_request_that_kills_replicas_ends(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    asked_replicas = LocalReplicas(replicas, cuts=[2, *repeat(0, 100)])
    with model_of(asked_replicas, loop, retries=3) as llm:
        with pytest.raises(BackendUnavailableError, match="4 replicas were lost one after the other"):
            asked(llm, "[count]")
        assert len(asked_replicas.sessions) == 5
        wait_until(lambda: llm.state().busy == 0)


def test_what_has_begun_waits_for_room(
    alone: LLM, replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    expected = asked(alone, "[count]", temperature=0)
    asked_replicas = LocalReplicas(replicas, cuts=[3], refusals=[False, True, True, False])
    with model_of(asked_replicas, loop) as llm:
        require_equal(asked(llm, "[count]", temperature=0), expected)


def test_what_has_not_begun_is_refused_without_room(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    asked_replicas = LocalReplicas(replicas, refusals=[True])
    with model_of(asked_replicas, loop) as llm, pytest.raises(QueueFullError):
        asked(llm, "[count]")
    assert asked_replicas.sessions == []


def test_the_time_before_a_replica_takes_a_request_counts_for_its_deadline(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica, "time", lambda: time() + 1000)
    with model_of(LocalReplicas(replicas), loop) as llm:
        with pytest.raises(DeadlineError):
            asked(llm, "[hello]", deadline=1000)
        assert asked(llm, "[hello]", deadline=2000)[0].finish_reason == "stop"


def test_errors_of_replicas_are_those_of_the_engine(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    with model_of(LocalReplicas(replicas), loop) as llm:
        with pytest.raises(LogitsError):
            asked(llm, "[faulty]")
        with pytest.raises(ContextOverflowError) as overflow:
            llm.submit("x" * 600)
        assert (overflow.value.prompt_tokens, overflow.value.context) == (601, 512)
        with pytest.raises(RequestError):
            llm.submit("x", session=3)
        with pytest.raises(RequestError, match="generates text"):
            llm.embed("x")


def test_a_cancelled_answer_is_what_has_come(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    asked_replicas = LocalReplicas(replicas)
    with model_of(asked_replicas, loop) as llm:
        handle = llm.submit("[endless]", temperature=0)
        steps = handle.steps()
        text = "".join(next(steps).text for _ in range(5))
        handle.cancel()
        found = handle.result(300)
        assert found.finish_reason == "cancelled"
        assert found.text.startswith(text)
        wait_until(lambda: asked_replicas.open == 0 and replicas[0]._port.state().busy == 0)
        wait_until(lambda: llm.state().busy == 0)


def test_closing_ends_all_answers(replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop):
    asked_replicas = LocalReplicas(replicas)
    llm = model_of(asked_replicas, loop)
    handles = [llm.submit("[endless]") for _ in range(3)]
    for handle in handles:
        next(handle.steps())
    assert llm.state().busy == 3
    llm.close()
    for handle in handles:
        with pytest.raises(ClosedError):
            handle.result(300)
    wait_until(asked_replicas.is_idle)


def test_scores_of_a_prompt_go_on(
    alone: LLM, replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    expected = list(alone.score_tokens("a[count] 1 2", top=2))
    for cuts in ([0], [1], [UNASKED, 0, 1]):
        with model_of(LocalReplicas(replicas, cuts=cuts), loop) as llm:
            assert list(llm.score_tokens("a[count] 1 2", top=2)) == expected


def test_logits_come_from_replicas(
    alone: LLM, replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop
):
    with model_of(LocalReplicas(replicas), loop) as llm:
        assert (llm.logits("[count] 1") == alone.logits("[count] 1")).all()
        assert llm.memory().input_weights == alone.memory().input_weights


def test_rows_go_to_replicas(alone: LLM, replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop):
    (width,) = alone.model.row_widths
    rows = Rows(np.random.default_rng(0).standard_normal((3, width)))
    prompt, options = ["[count] ", rows, " 1"], {"temperature": 0, "max_tokens": 5}
    expected = alone.generate(prompt, **options)
    with model_of(LocalReplicas(replicas, cuts=[2]), loop) as llm:
        assert llm.encode(prompt) == alone.encode(prompt)
        assert llm.generate(prompt, **options).tokens == expected.tokens
        assert (llm.logits(prompt) == alone.logits(prompt)).all()


def test_a_format_is_tried_by_the_application_and_not_again_by_a_replica(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
):
    tried = list[str]()
    monkeypatch.setattr(constraint_maker, "_try", lambda grammar, **_: tried.append(grammar))
    with model_of(LocalReplicas(replicas, cuts=[2]), loop) as llm:
        found, _ = asked(llm, "[json]", response_format={"type": "json_object"}, temperature=0)
    assert found.text == '{"answer": 42}'
    assert len(tried) == 1


def test_a_description_is_asked_for_until_a_replica_gives_one(
    replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(link, "PAUSE", 0.0)
    lossy = LocalReplicas(replicas, losses=2)
    with model_of(lossy, loop) as llm:
        assert llm._port.facts == asyncio.run(replicas[0].describe())[0].facts
    assert lossy.losses == 0


def test_the_tokens_are_counted_once(replicas: tuple[Replica, Replica], loop: asyncio.AbstractEventLoop):
    with model_of(LocalReplicas(replicas, cuts=[4, 4, 4]), loop) as llm:
        found, steps = asked(llm, "[count]", temperature=0)
        totals = llm.state().totals
    assert isinstance(steps[0], TokenStep)
    assert (totals.prompt, totals.generated) == (found.timings.prompt_tokens, 41)
