"""Guesses of the model's own head: it goes on from what the model computed, whatever became of earlier guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from model_files import unpacked, unpacked_folder
from predicting_models import run_head, steps_of, with_head, with_right_head
from runner_scripts import OPTIONS, let_guesses_pay, prompt
from small_llama import EOS

import backbay
from backbay_engine import LLM, RequestError, estimate, load
from backbay_engine.models import load_model
from backbay_engine.models.bases import Decoder
from backbay_engine.models.predicting_head import PredictingHead
from backbay_engine.runner.requests.generation import GenerationJob
from backbay_engine.runner.speculation import HeadSource
from backbay_engine.steps.step import prompt_step

SIZES: dict[str, Any] = {"context": 96, "parallel": 3, "batch": 32, "num_threads": 1, "kv_dtype": "f32"}
BACKENDS = sorted(backbay.backends())
Guessed: TypeAlias = list[tuple[list[int], list[int]]]


@pytest.fixture(autouse=True)
def guesses_always_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    let_guesses_pay(monkeypatch)


@pytest.fixture
def guessed(monkeypatch: pytest.MonkeyPatch) -> Guessed:
    """The tokens before each guess, and the guessed ones."""
    found: Guessed = []
    propose = GenerationJob.propose

    def noted(self: GenerationJob, guess: list[int]) -> None:
        if guess:
            found.append((self.known_ids, guess))
        propose(self, guess)

    monkeypatch.setattr(GenerationJob, "propose", noted)
    return found


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GLM whose head has random weights, so that it is seldom right."""
    folder = tmp_path_factory.mktemp("glm")
    return with_head(unpacked("glm4moe", folder), folder / "head.gguf", "glm4moe")


@pytest.fixture(params=BACKENDS)
def llm(glm: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(glm, request.param, **SIZES, speculate="mtp") as opened:
        yield opened


def source_of(llm: LLM) -> HeadSource:
    source = llm.runner.speculation.source  # type: ignore[union-attr]
    assert isinstance(source, HeadSource)
    return source


def says(path: Path, ids: list[int], begin: int, guess: list[int]) -> list[int]:
    """What the head says after each token behind the one at `begin`, if it takes them all at once, and after guesses."""
    with backbay.open(path, backend="cpu_ref") as backend:
        model = load_model(backend, SIZES["context"])
        assert isinstance(model, Decoder)
        head, model.keeps_rows = PredictingHead(model), True
        backend.load()
        trunk, ahead = (steps_of(each, backend, SIZES["context"]) for each in (model, head))
        trunk.run(prompt_step(np.array(ids[:-1], np.int32)))
        logits = run_head(ahead, np.array(ids[begin + 1 :], np.int32), trunk.rows[begin:])
        for place, token in enumerate(guess, start=len(logits)):
            further = run_head(ahead, np.array([token], np.int32), ahead.rows[-1:], first=place)
            logits = np.concatenate([logits, further])
        logits[:, list(OPTIONS["logit_bias"])] = -np.inf
        return logits.argmax(-1).tolist()


def check(path: Path, texts: list[list[int]], guessed: Guessed, begin: int = 0) -> None:
    """Guesses are what the head says after the same tokens of one of these texts; it has seen those behind `begin`."""
    known = {
        tuple(ids[: begin + n + 2]): token
        for ids in texts
        for n, token in enumerate(says(path, ids, begin, []))
    }
    assert len(guessed) > 5 * len(texts)
    for before, guess in guessed:
        assert guess[0] == known[tuple(before)]
    before, guess = max(guessed, key=lambda each: len(each[1]))
    assert len(guess) > 2
    assert guess == says(path, before, begin, guess[:-1])[-len(guess) :]


def answers(llm: LLM, *prompts: list[int], **options: Any) -> list[list[int]]:
    """Ask at once, and check that the answers are those without guesses; gives prompts with answers."""
    options = {**OPTIONS, "max_tokens": 24, **options}
    handles = [llm.submit(each, **options) for each in prompts]
    found = [handle.result(300).tokens for handle in handles]
    assert found == [llm.generate(each, **options, speculate=False).tokens for each in prompts]
    return [[*each, *tokens] for each, tokens in zip(prompts, found, strict=True)]


def test_a_right_head_is_always_believed(path: Path, tmp_path: Path) -> None:
    for backend in BACKENDS:
        right = with_right_head(path, tmp_path / "right.gguf")
        with load(right, backend, **SIZES, speculate="mtp") as llm:
            timings = llm.generate(
                "abc", **{**OPTIONS, "logit_bias": {EOS: float("-inf")}}, max_tokens=60
            ).timings
        assert timings.accepted_tokens == timings.guessed_tokens
        assert timings.tokens - timings.accepted_tokens <= 12  # steps


def test_the_head_has_taken_all_tokens_before_a_guess(llm: LLM, glm: Path, guessed: Guessed) -> None:
    """Of prompts that fill several steps, and after guesses that were wrong; also of several answers at once."""
    check(glm, answers(llm, prompt(70, 1), prompt(5, 2), prompt(20, 3)), guessed)


@pytest.mark.few(1)
def test_a_prompt_that_begins_like_an_earlier_one_leaves_no_gap(llm: LLM) -> None:
    source, shared = source_of(llm), prompt(40, 4)
    answers(llm, [*shared, 5, 6])
    (text,) = answers(llm, [*shared, 7, 8, 9])
    held = max(llm.runner.slots.all, key=lambda slot: slot.last_used)  # type: ignore[union-attr]
    assert len(held.tokens) == len(text) - 1
    assert source.cache.cells.end[held.sequence] > len(shared)  # type: ignore[attr-defined]


@pytest.mark.few(1)
def test_the_head_goes_on_behind_tokens_that_it_never_saw(llm: LLM, glm: Path, guessed: Guessed) -> None:
    """What another sequence computed, or a request without guesses, or what a snapshot restored."""
    shared = prompt(40, 5)
    llm.generate(shared, **OPTIONS, max_tokens=8, speculate=False)
    answers(llm, shared, [*shared[:30], 3], [*shared[:20], 4])
    saved = llm.save(shared)
    answers(llm, *(prompt(45, seed) for seed in (11, 12, 13)))  # which the head remembers
    llm.forget()
    llm.restore(saved)
    guessed.clear()
    found = llm.generate([*shared, 9], **OPTIONS, max_tokens=20)
    assert found.timings.reused_tokens == len(shared)
    check(glm, [[*shared, 9, *found.tokens]], guessed, begin=len(shared))
    assert found.tokens == llm.generate([*shared, 9], **OPTIONS, max_tokens=20, speculate=False).tokens


@pytest.mark.few(1)
def test_an_answer_goes_on_where_the_context_was_full(llm: LLM) -> None:
    answers(llm, prompt(80, 6), max_tokens=30, num_keep=4)


def test_answers_of_latent_attention_are_those_without_guesses(tmp_path: Path) -> None:
    path = with_head(unpacked("deepseek3", tmp_path), tmp_path / "m.gguf", "deepseek2", own=False)
    with load(path, "ggml", **SIZES, speculate="mtp") as llm:
        answers(llm, prompt(50, 7), prompt(9, 8), temperature=1.0, seed=3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "stored", [partial(unpacked_folder, "qwen3next-mtp"), partial(unpacked, "qwen35-mtp")]
)
@pytest.mark.few(2)
def test_heads_of_recurrent_models_go_on_behind_wrong_guesses(
    stored: Callable[[Path], Path], backend: str, tmp_path: Path, guessed: Guessed
) -> None:
    """A model computes the tokens before a wrong guess again, with the next guesses; its head keeps their rows."""
    path = stored(tmp_path)
    with load(path, backend, **SIZES, speculate="mtp") as llm:
        texts = [*answers(llm, prompt(70, 1)), *answers(llm, prompt(5, 2))]
        check(path, texts, guessed)
        assert any(len(before) - len(prompt(70, 1)) > 1 for before, _ in guessed)
        answers(llm, prompt(20, 3), prompt(9, 4), temperature=1.0, seed=3)  # at once: without guesses


def test_a_head_that_fails_costs_no_answer(glm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadSource, "compute", lambda self, step, parts: 1 / 0)
    with load(glm, "cpu_ref", **SIZES, speculate="mtp") as llm:
        answers(llm, prompt(50, 9))
        assert not llm.generate(prompt(5, 9), **OPTIONS, max_tokens=8).timings.guessed_tokens


def test_an_estimate_counts_the_head(glm: Path) -> None:
    sizes = {name: value for name, value in SIZES.items() if name != "num_threads"}
    plain, told = (estimate(glm, "ggml", **sizes, **how) for how in ({}, {"speculate": "mtp"}))
    assert told.draft is None  # it is a part of the model
    assert told.total() > plain.total()
    with load(glm, "ggml", **sizes, speculate="mtp") as llm:
        assert llm.memory().total() == told.total()


def test_models_without_a_head_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"a key llama\.nextn_predict_layers above 0"):
        load(path, "cpu_ref", speculate="mtp")
    with pytest.raises(RequestError, match="t5 has no head that predicts tokens"):
        load(unpacked("t5-flan", tmp_path), "cpu_ref", speculate="mtp")
