"""The scripted model gives exact answers through the real engine, whatever the backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scripted_model import SCRIPTS, write_embedder, write_reranker, write_scripted_model

from backbay_engine import LLM, LogitsError, load

ENDING = [name for name, script in SCRIPTS.items() if not (script.loops or script.faulty)]


@pytest.fixture(scope="module", params=["cpu_ref", "ggml"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def llm(backend: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_scripted_model(tmp_path_factory.mktemp("scripted") / "scripted.gguf")
    with load(path, backend, context=512, parallel=3) as llm:
        yield llm


def chosen(name: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Say [{name}]"}]


@pytest.mark.parametrize("name", ENDING)
def test_a_prompt_chooses_a_script(llm: LLM, name: str) -> None:
    for completion in (
        llm.generate(llm.chat_prompt(chosen(name)), temperature=0),
        llm.generate(f"Say [{name}]", temperature=0),
    ):
        assert completion.text == SCRIPTS[name].text
        assert completion.finish_reason == "stop"
        assert len(completion.tokens) == len(SCRIPTS[name].steps) + 1


def test_the_last_message_chooses(llm: LLM) -> None:
    history = [*chosen("hello"), {"role": "assistant", "content": "[hello]"}]
    assert llm.chat([*history, *chosen("json")], temperature=0).text == '{"answer": 42}'
    assert llm.chat([*history, {"role": "user", "content": "?"}], temperature=0).text == "ok"
    assert llm.chat([*history, {"role": "tool", "content": "sun"}], temperature=0).text == "It is sunny."


def test_half_characters_wait_for_the_rest(llm: LLM) -> None:
    assert list(llm.stream("[euro]", temperature=0)) == ["10 ", "\u20ac", " to ", "\U0001f600"]
    assert list(llm.stream("[half]", temperature=0)) == ["cut ", "\ufffd"]


def test_stop_strings_lie_across_tokens(llm: LLM) -> None:
    completion = llm.generate("[stops]", temperature=0, stop=["STOP"])
    assert (completion.text, completion.stop) == ("one ", "STOP")
    assert list(llm.stream("[almost]", temperature=0, stop=["STOP"])) == ["a ", "STORY"]


def test_an_endless_answer_ends_by_its_length_alone(llm: LLM) -> None:
    completion = llm.generate("[endless]", temperature=0, max_tokens=101)
    assert completion.text == "la" + " lala" * 50
    assert completion.finish_reason == "length"
    assert llm.generate("[endless]", temperature=0).finish_reason == "length"


def test_chances_are_those_of_the_script(llm: LLM) -> None:
    first = llm.generate("[coin]", temperature=0, logprobs=2).logprobs[0]
    found = {llm.tokenizer.decode([id]): value for id, value in first.top}
    assert found["heads"] == pytest.approx(math.log(0.75), abs=1e-4)
    assert found["tails"] == pytest.approx(math.log(0.25), abs=1e-4)
    answers = [llm.generate("[coin]", seed=seed, temperature=1, min_p=0).text for seed in range(60)]
    assert 30 <= answers.count("heads") < 60


def test_a_fault_ends_one_answer_in_its_midst(llm: LLM) -> None:
    faulty, other = (llm.submit(f"[{name}]", temperature=0) for name in ("faulty", "count"))
    pieces = iter(faulty)
    assert [next(pieces), next(pieces)] == ["so", " far"]
    with pytest.raises(LogitsError):
        next(pieces)
    assert other.result().text == SCRIPTS["count"].text
    assert llm.generate("[hello]", temperature=0).text == "Hello, world!"


def test_an_embedder_and_a_reranker_have_the_given_numbers(backend: str, tmp_path: Path) -> None:
    vectors = {"north": np.eye(8, dtype=np.float32)[0], "east": np.eye(8, dtype=np.float32)[1]}
    with load(write_embedder(tmp_path / "vectors.gguf", vectors), backend) as llm:
        found = llm.embed(["[north]", "[north][east]"])
    np.testing.assert_allclose(found[0], vectors["north"], atol=1e-5)
    np.testing.assert_allclose(found[1], (vectors["north"] + vectors["east"]) / math.sqrt(2), atol=1e-5)
    with load(write_reranker(tmp_path / "scores.gguf", {"best": 3.0, "good": 1.0}), backend) as llm:
        np.testing.assert_allclose(llm.rerank("?", ["a [good]", "b", "c [best]"]), [1.0, 0.0, 3.0], atol=1e-3)
