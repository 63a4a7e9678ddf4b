"""Answers with guessed tokens: each is the answer without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from constraints import Among, Spelled
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import unpacked
from predicting_models import with_right_head
from runner_scripts import OPTIONS, let_guesses_pay, prompt
from small_llama import EOS, WORDS, write_small_llama

import backbay
from backbay import OptionError
from backbay_engine import LLM, Completion, RequestError, TokenStep, load
from backbay_engine.runner.speculation import DraftModel, NgramSource, StepTimes
from backbay_engine.runner.traced_steps import StepCache

SIZES: dict[str, Any] = {"context": 96, "parallel": 3, "batch": 32, "num_threads": 1, "kv_dtype": "f32"}
BACKENDS = sorted(backbay.backends())
SOURCES = ["ngram", "same", "other", "elsewhere", "head"]
A, B, C = 97, 98, 99
ENDLESS = {EOS: float("-inf")}
AGAIN = "abcabcabcabcabc"
PROPERTY = settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module", autouse=True)
def guesses_always_pay() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        let_guesses_pay(patch)
        yield


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the same vocabulary, and other weights."""
    return write_small_llama(tmp_path_factory.mktemp("draft") / "draft.gguf", layers=1, seed=5)


@pytest.fixture(
    scope="module", params=[(backend, source) for backend in BACKENDS for source in SOURCES], ids=str
)
def guessing(path: Path, other: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A model on each backend, with each source of guesses."""
    backend, source = request.param
    how: dict[str, Any] = {
        "ngram": {"speculate": "ngram"},
        "same": {"draft": path},
        "other": {"draft": other},
        "elsewhere": {"draft": path, "draft_backend": next(name for name in BACKENDS if name != backend)},
        "head": {"speculate": "mtp"},
    }[source]
    if source == "head":  # often right, not always
        path = with_right_head(path, other.with_name("head.gguf"), noise=0.03)
    with load(path, backend, **SIZES, **how) as opened:
        yield opened


def steps_of(llm: LLM, asked: Any, **options: Any) -> tuple[list[TokenStep], Completion]:
    handle = llm.submit(asked, **options)
    return list(handle.steps()), handle.result(300)


def check(llm: LLM, asked: Any, options: dict[str, Any]) -> Completion:
    """The answer is that without guesses, step by step."""
    steps, found = steps_of(llm, asked, **options)
    plain_steps, plain = steps_of(llm, asked, **options, speculate=False)
    assert plain.timings.guessed_tokens == 0
    assert replace(found, timings=None, logprobs=None) == replace(plain, timings=None, logprobs=None)
    assert [(s.text, s.tokens, s.finish_reason) for s in steps] == [
        (s.text, s.tokens, s.finish_reason) for s in plain_steps
    ]
    for one, two in zip(found.logprobs or (), plain.logprobs or (), strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=1e-3)
    return found


def noted_sizes(llm: LLM, patch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each step that the model takes from now on."""
    sizes: list[int] = []
    run = StepCache.run

    def noted(self: StepCache, step: Any, cancel: Any = None) -> Any:
        if self is llm.step_cache:
            sizes.append(step.size)
        return run(self, step, cancel)

    patch.setattr(StepCache, "run", noted)
    return sizes


def held_by_the_cache(llm: LLM) -> bool:
    """Whether the cache holds as many positions of each sequence as the runner believes."""
    slots, cells = llm.runner.slots.all, llm.cache.cells  # type: ignore[union-attr]
    return all(len(slot.tokens) == cells.end[slot.sequence] for slot in slots)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "logit_bias": ENDLESS},
        {"temperature": 1.0, "seed": 3, "logprobs": 2},
        {"temperature": 2.0, "seed": 8, "top_k": 0, "logit_bias": {A: 9.0, B: 9.0, C: 9.0}},
        {"seed": 5, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "penalty_window": 6},
        {"seed": 1, "logit_bias": {A: 20.0, B: 19.5, C: 19.0}, "stop": ["abc", "cab", "bb", "aaaa"]},
        {"temperature": 0, "logit_bias": {A: 20.0}, "stop": "aaaaa"},
        {"temperature": 0, "logit_bias": {0xE2: 100.0}},  # never a whole character
    ],
    ids=["greedy", "seed", "hot", "penalties", "stops", "stop in a guess", "half"],
)
@pytest.mark.few(21)
def test_an_answer_is_that_without_guesses(guessing: LLM, options: dict[str, Any]) -> None:
    for max_tokens in (1, 2, 40):
        check(guessing, AGAIN, {**options, "max_tokens": max_tokens})
    assert held_by_the_cache(guessing)


@pytest.mark.few(4)
def test_a_seeded_answer_needs_fewer_steps_if_the_guesses_are_right(
    guessing: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = noted_sizes(guessing, monkeypatch)
    source = guessing.runner.speculation.source  # type: ignore[union-attr]
    loops = isinstance(source, NgramSource)  # such as a text that repeats itself
    bias = {A: 90.0} if loops else ENDLESS
    found = check(guessing, AGAIN, {"seed": 7, "temperature": 1.0, "max_tokens": 40, "logit_bias": bias})
    timings = found.timings
    assert timings.guessed_tokens >= timings.accepted_tokens
    if loops or (isinstance(source, DraftModel) and len(source.model.blocks) == 2):  # type: ignore[attr-defined]
        assert (
            timings.accepted_tokens >= 30
        )  # also of a sampled answer: the draft draws with the same numbers
        assert len(sizes) < 40 + 12  # both answers; without guesses they take 80


@PROPERTY
@given(
    st.lists(st.sampled_from([A, B]), min_size=1, max_size=30),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 24), "seed": st.integers(0, 2**63 - 1)},
        optional={
            "temperature": st.sampled_from([0, 0.5, 2.0]),
            "top_k": st.sampled_from([0, 3]),
            "min_p": st.just(0.0),
            "repetition_penalty": st.floats(0.7, 1.5),
            "logit_bias": st.dictionaries(
                st.sampled_from([A, B, C, 0xE2, 0x82, 0xAC, EOS]), st.floats(0, 30)
            ),
            "stop": st.lists(st.text("abc€", min_size=1, max_size=4), max_size=3),
            "reuse": st.booleans(),
            "num_keep": st.sampled_from([0, 4]),
        },
    ),
)
@pytest.mark.few(4)
def test_an_answer_is_that_without_guesses_whatever_its_options_are(
    guessing: LLM, ids: list[int], options: dict[str, Any]
) -> None:
    check(guessing, ids, options)
    assert held_by_the_cache(guessing)


@pytest.mark.few(2)
def test_constraints_hold_in_guessed_places(guessing: LLM) -> None:
    word = list(b"abcabcabcabc")
    for options in ({"temperature": 0}, {"temperature": 1.5, "seed": 2}):
        among = Among((A, B), WORDS)
        found = guessing.generate(AGAIN, max_tokens=30, constraint=among, **options)
        assert set(found.tokens) <= {A, B}
        assert among.accepted == found.tokens  # once each
        places = [*word, None, *word, EOS]
        forced = guessing.generate(AGAIN, constraint=Spelled(places, WORDS), **options)
        assert forced.tokens[:12] == word
        plain = guessing.generate(AGAIN, constraint=Spelled(places, WORDS), speculate=False, **options)
        assert forced.tokens == plain.tokens


@pytest.mark.few(4)
def test_formats_hold_in_guessed_places(guessing: LLM) -> None:
    pytest.importorskip("llguidance")
    options = {"response_format": "[ab]{6}(abc){3}x", "seed": 3}
    assert check(guessing, AGAIN, options).finish_reason == "stop"


@pytest.mark.few(4)
def test_requests_at_once_are_as_alone(guessing: LLM) -> None:
    asked = [(AGAIN, {"temperature": 0}), ("xyxyxyxy", {"seed": 4}), ([65] * 30, {"seed": 5, "logprobs": 1})]
    alone = [guessing.generate(text, max_tokens=30, speculate=False, **options) for text, options in asked]
    handles = [guessing.submit(text, max_tokens=30, **options) for text, options in asked * 3]
    for handle, expected in zip(handles, alone * 3, strict=True):
        assert handle.result(300).tokens == expected.tokens
    assert held_by_the_cache(guessing)


@pytest.mark.few(4)
def test_an_answer_is_resumed_after_guessed_tokens(guessing: LLM) -> None:
    options = {"max_tokens": 24, "seed": 6, "logit_bias": {A: 8.0, B: 8.0}}
    whole = check(guessing, AGAIN, options)
    for cut in range(0, len(whole.tokens), 3):
        assert guessing.generate(AGAIN, resume=whole.tokens[:cut], **options).tokens == whole.tokens


@pytest.mark.few(4)
def test_an_answer_ends_where_the_context_is_full(guessing: LLM) -> None:
    found = check(guessing, [A] * 80, {"temperature": 0, "logit_bias": {A: 30.0}})
    assert len(found.tokens) == guessing.context - 80 + 1


@pytest.mark.few(4)
def test_a_cancelled_answer_leaves_no_guess_behind(guessing: LLM) -> None:
    for stop_after in (1, 5, 12):
        handle = guessing.submit(AGAIN, temperature=0, logit_bias={A: 30.0}, max_tokens=10**6, num_keep=4)
        for n, _ in enumerate(handle.steps()):
            if n == stop_after:
                handle.cancel()
        assert handle.result(300).finish_reason == "cancelled"
    guessing.forget()
    assert held_by_the_cache(guessing)


@pytest.mark.few(4)
def test_a_step_with_guesses_that_fails_is_made_without_them(
    guessing: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"temperature": 0, "max_tokens": 20, "logit_bias": {A: 30.0}}
    plain = guessing.generate(AGAIN, speculate=False, **options)
    compute, failed = StepCache._compute, Event()

    def fails_once(self: StepCache, step: Any, plan: Any, cancel: Any) -> Any:
        result = compute(self, step, plan, cancel)
        if self is guessing.step_cache and len(step.outputs) > 1 and not failed.is_set():
            failed.set()
            raise RuntimeError("injected")
        return result

    monkeypatch.setattr(StepCache, "_compute", fails_once)
    assert guessing.generate(AGAIN, **options).tokens == plain.tokens
    assert failed.is_set()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["t5-flan", "gemma2", "deepseek2-lite", "mamba2", "lfm2", "rwkv7", "qwen35"])
@pytest.mark.few(4)
def test_answers_of_other_kinds_of_models_are_those_without(kind: str, backend: str, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {**SIZES, "parallel": 2, "batch": 48}
    with load(unpacked(kind, tmp_path), backend, **sizes, speculate="ngram") as llm:
        asked, loop = prompt(6, 1) * 3, {**OPTIONS["logit_bias"], 7: 30.0, 8: 29.0, 9: 28.0}
        for options in ({"temperature": 0}, {"temperature": 1.0, "seed": 6}):
            check(llm, asked, {**OPTIONS, "max_tokens": 20, **options})
            found = check(llm, asked, {**OPTIONS, "max_tokens": 40, **options, "logit_bias": loop})
            assert found.timings.guessed_tokens
        assert (
            found.timings.accepted_tokens < found.timings.guessed_tokens
        )  # some of those by chance were wrong


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["mamba2", "qwen35"])
@pytest.mark.few(2)
def test_guesses_drive_no_state_out_from_which_prompts_go_on(
    kind: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a recurrent model: steps with guesses, and those that take tokens up again, are no ends of prompts."""
    options = {
        "temperature": 1.0,
        "seed": 6,
        "max_tokens": 50,
        "logit_bias": {2: -np.inf, 7: 30.0, 8: 29.0, 9: 28.0},
    }
    with load(unpacked(kind, tmp_path), backend, **SIZES, speculate="ngram") as llm:
        asked, sizes = prompt(6, 1) * 5, noted_sizes(llm, monkeypatch)
        first = llm.generate(asked, **options)
        assert 0 < first.timings.accepted_tokens < first.timings.guessed_tokens
        assert len(sizes) == 1 + 50 - first.timings.accepted_tokens  # none takes up tokens alone
        again = llm.generate(asked, **options)
        assert (again.timings.reused_tokens, again.tokens) == (len(asked) - 1, first.tokens)
        beside = [llm.submit(prompt(9, 2), **options), llm.submit(asked, **options)]
        assert [each.result(300).tokens for each in beside][1] == first.tokens
        handle = llm.submit(asked, **options)
        late = [
            handle,
            *(llm.submit(prompt(9, 2), **options) for n, _ in enumerate(handle.steps()) if n == 20),
        ]
        assert late[0].result(300).tokens == first.tokens
        assert late[1].result(300).tokens == llm.generate(prompt(9, 2), **options, speculate=False).tokens


def test_a_worker_guesses(path: Path) -> None:
    options = {"temperature": 0, "max_tokens": 40, "logit_bias": {A: 30.0}}
    with load(path, "cpu_ref", **SIZES, speculate="ngram", worker=True) as llm:
        check(llm, AGAIN, options)
    with load(path, "cpu_ref", **SIZES, draft=path, draft_backend="ggml", worker=True) as llm:
        check(llm, AGAIN, options)


@pytest.mark.parametrize("name", [None, "onnx"])
def test_a_draft_runs_on_the_backend_of_the_model_or_on_the_named_one(path: Path, name: str | None) -> None:
    with load(path, "cpu_ref", **SIZES, draft=path, draft_backend=name) as llm:
        assert llm.runner.speculation.source.backend.name == (name or "cpu_ref")  # type: ignore[union-attr]


def test_a_draft_that_fails_costs_no_answer(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(path, "cpu_ref", **SIZES, draft=path) as llm:
        plain = llm.generate(AGAIN, temperature=0, max_tokens=12, speculate=False)
        monkeypatch.setattr(DraftModel, "_run", lambda self, parts: 1 / 0)
        found = llm.generate(AGAIN, temperature=0, max_tokens=12)
    assert (found.tokens, found.timings.guessed_tokens) == (plain.tokens, 0)


def test_the_first_choice_of_many_seeds_has_the_probabilities_of_the_model(path: Path) -> None:
    """A guess is accepted as often as the model would have chosen it."""
    bias = {A: 6.0, B: 5.0, C: 4.0}
    with load(path, "cpu_ref", **SIZES, speculate="ngram") as llm:
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "max_tokens": 2}
        seconds = [
            llm.generate(AGAIN, seed=seed, logit_bias=bias, **options).tokens[1:] for seed in range(150)
        ]
        plain = [
            llm.generate(AGAIN, seed=seed, logit_bias=bias, speculate=False, **options).tokens[1:]
            for seed in range(150)
        ]
    assert seconds == plain  # not only as often: the same choices


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"speculate": "words"}, "speculate must be 'ngram', 'mtp' or None"),
        ({"speculate": "ngram", "draft": "x.gguf"}, "not both"),
        ({"draft_backend": "ggml"}, "draft_backend and draft_params are for"),
    ],
)
def test_wrong_options_are_refused(path: Path, how: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        load(path, "cpu_ref", **SIZES, **how)


def test_models_that_do_not_fit_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="generates no text"):
        load(unpacked("bert", tmp_path), "cpu_ref", speculate="ngram")
    with pytest.raises(RequestError, match="its vocabulary is another one: token"):
        load(path, "cpu_ref", draft=unpacked("t5-flan", tmp_path))
    with load(path, "cpu_ref", **SIZES) as llm, pytest.raises(RequestError, match="speculate must be True"):
        llm.submit("x", speculate="ngram")


def test_steps_with_guesses_are_no_larger_than_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(path, "cpu_ref", **{**SIZES, "batch": 5}, speculate="ngram") as llm:
        sizes = noted_sizes(llm, monkeypatch)
        found = llm.generate(AGAIN, temperature=0, max_tokens=30, logit_bias={A: 30.0})
    assert found.timings.accepted_tokens
    assert max(sizes) <= 5


def test_many_answers_at_once_are_not_guessed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of more tokens takes as much longer: guesses do not pay, however right they are."""
    monkeypatch.setattr(StepTimes, "known", lambda self, tokens: float(tokens))
    monkeypatch.setattr(StepTimes, "seconds", lambda self, tokens, base: float(tokens))
    with load(path, "cpu_ref", **SIZES, speculate="ngram") as llm:
        handles = [llm.submit(AGAIN, temperature=0, max_tokens=20, logit_bias={A: 30.0}) for _ in range(3)]
        assert [handle.result(300).timings.guessed_tokens for handle in handles] == [0, 0, 0]


def test_logits_of_a_step_of_several_tokens_are_those_of_steps_of_one(path: Path) -> None:
    """The reference computes each column alone; other backends differ by rounding, which ties may show."""
    ids = np.arange(40, 60).tolist()
    with load(path, "cpu_ref", **SIZES) as llm:
        several = llm.logits(ids)
        with load(path, "cpu_ref", **{**SIZES, "parallel": 1, "batch": 1}) as other:
            assert np.array_equal(other.logits(ids), several)
