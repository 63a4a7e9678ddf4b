"""Completions of plain prompts, over the scripted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asking import ask
from scripted_model import SCRIPTS, write_scripted_model

from backbay_engine import load


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


def complete(model: Path, prompt: Any, **fields: Any) -> Any:
    return ask(model, "/v1/completions", {"prompt": prompt, "temperature": 0, **fields})


def texts(body: Any) -> list[str]:
    return [choice["text"] for choice in body["choices"]]


def test_a_prompt_is_a_text_ids_or_several(model: Path):
    with load(model, "cpu_ref", context=64) as llm:
        ids = llm.encode("[hello]")
    for prompt in ("[hello]", ids, ["[hello]"], [ids]):
        status, body = complete(model, prompt)
        assert (status, texts(body)) == (200, ["Hello, world!"]), prompt
    _, body = complete(model, ["[hello]", "[ok]"], n=2)
    assert texts(body) == ["Hello, world!", "Hello, world!", "ok", "ok"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]


def test_sixteen_tokens_are_the_default(model: Path):
    _, body = complete(model, "[count]")
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


def test_an_echo_stands_before_the_answer(model: Path):
    assert texts(complete(model, "[hello]", echo=True)[1]) == ["[hello]Hello, world!"]
    _, chunks = complete(model, "[hello]", echo=True, stream=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "[hello]Hello, world!"


def test_a_prompt_can_be_scored_without_an_answer(model: Path):
    status, body = complete(model, "abc[ok]ok", echo=True, max_tokens=0, logprobs=2)
    assert status == 200
    [choice] = body["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == "abc[ok]ok"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 0
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert {len(each) for each in logprobs.values()} == {body["usage"]["prompt_tokens"]}


def test_logprobs_have_offsets_into_the_text(model: Path):
    _, body = complete(model, "[hello]", logprobs=0)
    [choice] = body["choices"]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"] == SCRIPTS["hello"].text
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        assert choice["text"].startswith(token, offset)


@pytest.mark.parametrize(
    "fields",
    [
        {"suffix": "x"},
        {"best_of": 2},
        {"prompt": []},
        {"prompt": ["a", 1]},
        {"prompt": [[]]},
        {"prompt": ""},
        {"prompt": [10**9]},
        {"prompt": [-1]},
        {"logprobs": 21},
        {"max_tokens": -1},
        {"n": 1000},
        {"n": 0},
        {"stop": [""]},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"999999": 1}},
        {"stream": "yes"},
    ],
)
def test_what_is_wrong_is_a_400(model: Path, fields: dict[str, Any]):
    status, body = ask(model, "/v1/completions", {"prompt": "[ok]", **fields})
    assert (status, body["error"]["type"]) == (400, "invalid_request_error"), body
