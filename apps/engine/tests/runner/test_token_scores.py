"""The log-probabilities of a prompt's own tokens."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import unpacked
from small_llama import WORDS

from backbay_engine import LLM, ContextOverflowError, RequestError, Sampled, load
from backbay_engine.runner.requests import prompt_jobs
from backbay_engine.runner.traced_steps import StepCache

SIZES: dict[str, Any] = {"context": 64, "parallel": 2, "batch": 16, "num_threads": 1, "kv_dtype": "f32"}


def check(llm: LLM, ids: list[int], found: list[Sampled], top: int) -> None:
    logits = llm.logits(ids).astype(np.float64)
    logs = logits - logits.max(axis=1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
    assert [each.token for each in found] == ids
    assert found[0] == Sampled(ids[0])
    for at, each in enumerate(found[1:]):
        assert each.logprob == pytest.approx(logs[at, ids[at + 1]], abs=1e-3)
        assert len(each.top) == top
        assert all(one.logprob >= other.logprob for one, other in pairwise(each.top))
        for one in each.top:
            assert one.logprob == pytest.approx(logs[at, one.token], abs=1e-3)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 50, 64])
@pytest.mark.parametrize("top", [0, 3])
def test_they_are_those_of_the_logits(llm: LLM, length: int, top: int) -> None:
    ids = np.random.default_rng(length).integers(0, 256, length).tolist()
    check(llm, ids, list(llm.score_tokens(ids, top=top)), top)


def test_a_text_may_be_asked_for(llm: LLM) -> None:
    ids = llm.encode("a text")
    check(llm, ids, list(llm.score_tokens("a text", top=1)), 1)


def test_answers_go_on_beside_it(llm: LLM) -> None:
    alone = llm.generate("beside", max_tokens=12, temperature=0).tokens
    handle = llm.submit("beside", max_tokens=12, temperature=0)
    assert len(list(llm.score_tokens([65] * 60))) == 60
    assert handle.result(300).tokens == alone


def test_few_logits_are_there_at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    run = StepCache.run

    def noted(self: StepCache, step: Any, cancel: Any = None) -> Any:
        rows.append(len(step.outputs))
        return run(self, step, cancel)

    monkeypatch.setattr(StepCache, "run", noted)
    monkeypatch.setattr(prompt_jobs, "LOGITS", 5 * 4 * WORDS)
    with load(path, "cpu_ref", **SIZES) as llm:
        found = list(llm.score_tokens(list(range(43)), top=2))
        assert max(rows) == 5
        check(llm, list(range(43)), found, 2)


@pytest.mark.parametrize("kind", ["mamba2", "qwen35"])
def test_recurrent_models_tell_them_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(unpacked(kind, tmp_path), "cpu_ref", **{**SIZES, "batch": 48}) as llm:
        ids = list(range(3, 40))
        check(llm, ids, list(llm.score_tokens(ids, top=2)), 2)


def test_leaving_the_loop_frees_its_place(llm: LLM) -> None:
    for _ in range(5):
        for _ in llm.score_tokens([65] * 60):
            break
    llm.forget()  # waits until nothing runs
    assert all(not slot.busy for slot in llm.state().slots)


def test_wrong_questions_are_refused(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="top must be an integer of at least 0, got -1"):
        llm.score_tokens("x", top=-1)
    with pytest.raises(ContextOverflowError):
        llm.score_tokens([1] * 65)
    with pytest.raises(RequestError, match="empty"):
        llm.score_tokens([])
    with (
        load(unpacked("t5-flan", tmp_path), "cpu_ref", context=64) as encoding,
        pytest.raises(RequestError, match="encodes its prompt"),
    ):
        encoding.score_tokens([5, 6, 1])
