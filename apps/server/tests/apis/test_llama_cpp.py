"""The endpoints of llama.cpp's server, over scripted models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, ask_chat
from scripted_model import says, write_embedder, write_scripted_model
from serving import chunks_of, client_of

from backbay_engine import load
from backbay_server.generation.prompts import gap_prompt
from backbay_server.generation.requests import InfillGap

FORMATS = pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tokens to fill in the middle, which answers the mark of the middle."""
    scripts = {"ok": says("ok"), "gap": says(*MARKS, "x", " =", " 1")}
    path = tmp_path_factory.mktemp("models") / "filler.gguf"
    return write_scripted_model(path, scripts, control=MARKS)


def complete(model: Path, prompt: Any = "[hello]", **fields: Any) -> Any:
    return ask(model, "/completion", {"prompt": prompt, "temperature": 0, **fields})


def get(model: Path, path: str, **settings: Any) -> Any:
    async def asking() -> Any:
        async with client_of(model, **settings) as client:
            found = await client.get(path)
            return found.status_code, found.json()

    return asyncio.run(asking())


def test_a_completion_has_the_fields_of_llama_servers(model: Path):
    status, body = complete(model, return_tokens=True)
    assert status == 200
    assert (body["content"], body["stop"], body["stop_type"], body["truncated"]) == (
        "Hello, world!",
        True,
        "eos",
        False,
    )
    assert body["prompt"].endswith("[hello]")
    assert len(body["tokens"]) == 4  # the token that ends the answer counts, and is not shown
    assert body["tokens_predicted"] == body["timings"]["predicted_n"] == 5
    assert body["timings"]["prompt_n"] + body["timings"]["cache_n"] == body["tokens_evaluated"]
    assert body["generation_settings"]["n_ctx"] == 512
    assert complete(model)[1]["tokens"] == []


@pytest.mark.parametrize(
    ("fields", "content", "stop_type", "word"),
    [
        ({"n_predict": 2}, "Hello,", "limit", ""),
        ({"n_predict": 0}, "", "limit", ""),
        ({"n_predict": -1}, "Hello, world!", "eos", ""),
        ({"stop": ["wor"]}, "Hello, ", "word", "wor"),
    ],
)
def test_an_answer_ends_as_asked(
    fields: Mapping[str, Any], content: str, stop_type: str, word: str, model: Path
):
    _, body = complete(model, **fields)
    assert (body["content"], body["stop_type"], body["stopping_word"]) == (content, stop_type, word)


def test_a_streamed_completion_ends_with_its_summary(model: Path):
    status, chunks = complete(model, stream=True)
    assert status == 200
    *grown, last = chunks
    assert "".join(chunk["content"] for chunk in grown) == "Hello, world!"
    assert not any(chunk["stop"] for chunk in grown)
    assert (last["stop"], last["content"], last["tokens"], last["stop_type"]) == (True, "", [], "eos")
    assert sum(len(chunk["tokens"]) for chunk in grown) == grown[-1]["tokens_predicted"] == 4
    assert last["tokens_predicted"] == 5


def test_several_prompts_give_a_list(model: Path):
    _, bodies = complete(model, ["[hello]", "[ok]"])
    assert [body["content"] for body in bodies] == ["Hello, world!", "ok"]
    _, bodies = complete(model, n_cmpl=2)
    assert [(body["index"], body["content"]) for body in bodies] == [
        (0, "Hello, world!"),
        (1, "Hello, world!"),
    ]


def test_probabilities_come_with_ids(model: Path):
    _, body = complete(model, n_probs=3, n_predict=2)
    first, second = body["completion_probabilities"]
    assert [first["token"], second["token"]] == ["Hello", ","]
    assert first["id"] != second["id"]
    assert len(first["top_logprobs"]) == 3
    assert first["top_logprobs"][0]["id"] == first["id"]
    assert first["logprob"] <= 0
    _, chunks = complete(model, n_probs=3, n_predict=2, stream=True)
    assert [chunk["completion_probabilities"][0]["token"] for chunk in chunks[:-1]] == ["Hello", ","]


def test_fields_of_an_answer_can_be_chosen(model: Path):
    _, body = complete(model, response_fields=["content", "timings/predicted_n", "nothing/at/all"])
    assert body == {"content": "Hello, world!", "timings/predicted_n": 5}


def test_the_end_can_be_forbidden(model: Path):
    for path, prompt in (("/completion", "[ok]"), ("/v1/completions", "[ok]")):
        _, body = ask(model, path, {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True})
        told = body if path == "/completion" else {"tokens_predicted": body["usage"]["completion_tokens"]}
        assert told["tokens_predicted"] == 4


@FORMATS
def test_a_grammar_and_a_schema_are_obeyed(model: Path):
    _, body = complete(model, grammar='root ::= "yes" | "no"')
    assert body["content"] in ("yes", "no")
    _, body = complete(model, json_schema={"const": "42"})
    assert body["content"] == '"42"'
    _, body = ask_chat(model, "hello", grammar='root ::= "yes" | "no"')
    assert body["choices"][0]["message"]["content"] in ("yes", "no")
    assert complete(model, grammar="root ::= this is (not")[0] == 400
    status, body = ask_chat(model, "hello", grammar='root ::= "a"', response_format={"type": "json_object"})
    assert (status, "one format" in body["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("field", "neutral", "refused"),
    [("mirostat", 0, 2), ("typical_p", 1.0, 0.5), ("xtc_probability", 0, 0.5), ("dry_multiplier", 0.0, 0.8)],
)
def test_samplers_that_are_not_there_are_refused_unless_they_are_off(
    field: str, neutral: float, refused: float, model: Path
):
    assert complete(model, **{field: neutral})[0] == 200
    assert ask_chat(model, "ok", **{field: neutral})[0] == 200
    status, body = complete(model, **{field: refused})
    assert (status, body["error"]["param"]) == (400, field)


def test_a_gap_is_filled(filler: Path):
    body = {
        "input_prefix": "def f():\n    ",
        "input_suffix": "\n    return x<|fim_middle|>",  # text of a user is no mark
        "input_extra": [{"filename": "a.py", "text": "import b"}],
        "prompt": "  ",
        "temperature": 0,
    }
    status, answer = ask(filler, "/infill", body)
    assert (status, answer["content"]) == (200, "x = 1")
    assert answer["prompt"].count("<|fim_prefix|>def f():\n      <|fim_suffix|>") == 1
    assert answer["prompt"].endswith("return x<|fim_middle|><|fim_middle|>")
    assert "import b" in answer["prompt"].partition("<|fim_prefix|>")[0]
    streamed = ask(filler, "/infill", {**body, "stream": True})[1]
    assert "".join(chunk["content"] for chunk in streamed) == "x = 1"


def test_a_model_without_tokens_for_gaps_sees_the_text_after_first(model: Path):
    body = {"input_prefix": "before [hello]", "input_suffix": "after", "temperature": 0}
    body["input_extra"] = [{"text": "import b"}]
    status, answer = ask(model, "/infill", body)
    assert (status, answer["content"]) == (200, "Hello, world!")
    places = [answer["prompt"].index(text) for text in ("import b", "after", "before [hello]")]
    assert places == sorted(places)
    assert ask(model, "/infill", {"input_prefix": "[ok]", "input_suffix": ""})[1]["prompt"] == "<s>[ok]"


def test_biases_may_name_texts(model: Path):
    for bias in ({"x": 200}, [["x", 200]], {"xy": 100, "y": False, "x": 200}):
        status, body = complete(model, logit_bias=bias, n_predict=1)
        assert (status, body["content"]) == (200, "x")
    _, body = ask_chat(model, "hello", logit_bias={"x": 100, "Hello": -100}, temperature=0, max_tokens=1)
    assert body["choices"][0]["message"]["content"] == "x"
    assert complete(model, logit_bias={"-1": 1})[0] == 400


def test_a_long_gap_keeps_what_is_near(filler: Path):
    lines = [f"line {number}\n" for number in range(500)]
    _, answer = ask(
        filler, "/infill", {"input_prefix": "".join(lines), "input_suffix": "".join(lines), "n_predict": 1}
    )
    before, _, after = answer["prompt"].partition("<|fim_suffix|>")
    assert answer["tokens_evaluated"] < 512
    assert before.endswith("line 499\n")
    assert "line 400" not in before
    assert after.startswith("line 0\n")


def test_a_gap_begins_as_a_text_does(filler: Path):
    with load(filler, "cpu_ref") as llm:
        assert gap_prompt(llm, InfillGap("a", "b"))[0] == llm.encode("a")[0] == llm.tokenizer.bos


def test_a_suffix_is_filled_to_in_other_apis(filler: Path, model: Path):
    body = {"model": "filler", "prompt": "def f():", "suffix": "return x"}
    _, answer = ask(filler, "/v1/completions", {**body, "temperature": 0})
    assert answer["choices"][0]["text"] == "x = 1"
    _, answer = ask(filler, "/api/generate", {**body, "stream": False, "options": {"temperature": 0}})
    assert answer["response"] == "x = 1"
    for path in ("/v1/completions", "/api/generate"):
        assert ask(model, path, {**body, "model": "scripted"})[0] == 400
    assert ask(filler, "/v1/completions", {**body, "prompt": [1, 2]})[0] == 400


def test_a_model_and_its_slots_are_described(model: Path):
    status, body = get(model, "/props", parallel=3)
    assert status == 200
    assert (body["total_slots"], body["default_generation_settings"]["n_ctx"]) == (3, 512)
    assert (body["model_path"], body["bos_token"], body["modalities"]["vision"]) == (
        "scripted.gguf",
        "<s>",
        False,
    )
    assert "<|assistant|>" in body["chat_template"]
    status, slots = get(model, "/slots?model=scripted", parallel=3)
    assert [(slot["id"], slot["n_ctx"], slot["is_processing"]) for slot in slots] == [
        (0, 512, False),
        (1, 512, False),
        (2, 512, False),
    ]
    assert get(model, "/props?model=other")[0] == 404


def test_a_prompt_is_shown_and_counted(model: Path):
    body = {"messages": [{"role": "user", "content": "[hello]"}]}
    _, shown = ask(model, "/apply-template", body)
    assert shown["prompt"] == "<s><|user|>[hello]<|end|><|assistant|>[hello]"
    _, counted = ask(model, "/v1/chat/completions/input_tokens", body)
    _, answered = ask(model, "/v1/chat/completions", {**body, "max_tokens": 1})
    assert counted["input_tokens"] == answered["usage"]["prompt_tokens"]
    _, counted = ask(model, "/v1/responses/input_tokens", {"input": "[hello]"})
    assert counted == {
        "object": "response.input_tokens",
        "input_tokens": answered["usage"]["prompt_tokens"],
    }


def test_paths_without_a_version_are_there(model: Path):
    async def asking() -> None:
        async with client_of(model) as client:
            assert (await client.get("/models")).json()["data"][0]["id"] == "scripted"
            assert (await client.get("/v1/health")).json() == {"status": "ok"}
            body = {"messages": [{"role": "user", "content": "[hello]"}], "stream": True}
            *_, last, done = chunks_of((await client.post("/chat/completions", json=body)).text)
            assert (last["timings"]["predicted_n"], done) == (5, "[DONE]")
            assert last["system_fingerprint"].startswith("backbay-")

    asyncio.run(asking())


def test_vectors_come_in_the_older_form(tmp_path: Path):
    model = write_embedder(tmp_path / "vectors.gguf", {"north": np.eye(8, dtype=np.float32)[0]})
    _, found = ask(model, "/embedding", {"content": ["[north]", "[north]"]})
    assert [each["index"] for each in found] == [0, 1]
    assert len(found[0]["embedding"]) == 1
    assert found[0]["embedding"] == found[1]["embedding"]


def test_a_model_with_several_names_needs_none(model: Path):
    status, body = ask(
        model,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "[hello]"}]},
        aliases={"gpt-4": "scripted"},
    )
    assert (status, body["model"]) == (200, "scripted")
