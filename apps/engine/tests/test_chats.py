"""Answers in parts: reasoning and calls of tools apart from the text, by the public API on every backend."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from scripted_model import HERMES, SCRIPTS, says, write_scripted_model

import backbay
from backbay_engine import (
    LLM,
    CallArguments,
    CallBegun,
    Reasoning,
    RequestError,
    Text,
    ToolsError,
    load,
)
from backbay_engine.port.chats import CHAT_OPTIONS

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]


@pytest.fixture(scope="module", params=sorted({"cpu_ref", "ggml", "onnx"} & backbay.backends().keys()))
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model that answers as the name in brackets says."""
    path = write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf")
    with load(path, request.param, context=512, parallel=2) as made:
        yield made


def asked(script: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"[{script}]"}]


def test_reasoning_is_apart_from_the_text(llm: LLM) -> None:
    answer = llm.chat(asked("think"))
    assert (answer.reasoning.strip(), answer.text, answer.tool_calls) == ("Hm.", "Yes.", [])
    assert answer.finish_reason == "stop"
    assert answer.message == {"role": "assistant", "content": "Yes.", "reasoning_content": answer.reasoning}


def test_calls_are_apart_from_the_text(llm: LLM) -> None:
    answer = llm.chat(asked("both"), tools=TOOLS)
    assert answer.finish_reason == "tool_calls"
    assert answer.text == ""
    assert [(call.name, call.values) for call in answer.tool_calls] == [
        ("get_weather", {"city": "Paris", "days": 1}),
        ("get_time", {"zone": "CET"}),
    ]
    assert len({call.id for call in answer.tool_calls}) == 2


def test_a_conversation_goes_on_with_the_message_and_the_results(llm: LLM) -> None:
    said = asked("talk_and_call")
    answer = llm.chat(said, tools=TOOLS)
    assert answer.text == "I will look."
    [call] = answer.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "12:00"}
    assert llm.chat([*said, answer.message, result], tools=TOOLS).text == "It is sunny."
    [shown] = answer.message["tool_calls"]
    assert shown["function"] == {"name": "get_time", "arguments": {"zone": "UTC"}}


def test_without_tools_calls_are_text(llm: LLM) -> None:
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        answer = llm.chat(asked("weather"), **options)
        assert answer.text == SCRIPTS["weather"].text
        assert not answer.tool_calls


def test_an_answer_may_be_limited_to_one_call(llm: LLM) -> None:
    answer = llm.chat(asked("both"), tools=TOOLS, parallel_tool_calls=False)
    assert [call.name for call in answer.tool_calls] == ["get_weather"]


def test_arguments_come_while_they_grow(llm: LLM) -> None:
    pieces = [*llm.stream_chat(asked("talk_and_call"), tools=TOOLS)]
    kinds = [type(piece) for piece in pieces]
    begun = kinds.index(CallBegun)
    assert set(kinds[:begun]) == {Text} and set(kinds[begun + 1 :]) == {CallArguments}
    arguments = [piece.text for piece in pieces if isinstance(piece, CallArguments)]
    assert len(arguments) > 1 and json.loads("".join(arguments)) == {"zone": "UTC"}
    reasoned = [*llm.stream_chat(asked("think"))]
    assert {type(piece) for piece in reasoned} == {Reasoning, Text}


def test_leaving_a_stream_cancels_its_request(llm: LLM) -> None:
    pieces = llm.stream_chat(asked("endless"), max_tokens=10_000)
    assert isinstance(next(pieces), Text)
    pieces.close()  # type: ignore[attr-defined]
    assert llm.chat(asked("ok")).text == "ok"


def test_a_cut_call_keeps_its_reason(llm: LLM) -> None:
    answer = llm.chat(asked("weather"), tools=TOOLS, max_tokens=12)
    assert answer.finish_reason == "length"
    [call] = answer.tool_calls
    assert call.name == "get_weather" and call.values == {}


LOST = {"quiet": SCRIPTS["quiet"], **SCRIPTS}  # a format takes the model out of its script


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_can_be_demanded(tmp_path: Path, choice: Any) -> None:
    pytest.importorskip("llguidance")
    with load(write_scripted_model(tmp_path / "m.gguf", LOST), "cpu_ref", context=512) as made:
        answer = made.chat(asked("hello"), tools=[WEATHER], tool_choice=choice, max_tokens=200)
    [call] = answer.tool_calls
    assert call.name == "get_weather"
    assert answer.text == ""


def test_a_prepared_conversation_is_what_chat_submits(llm: LLM) -> None:
    chat = llm.prepare_chat(asked("weather"), tools=TOOLS)
    whole = llm.submit(chat.prompt, **chat.options).result()
    assert whole.text == SCRIPTS["weather"].text
    assert chat.told_apart(whole).tool_calls[0].values == {"city": "K\u00f6ln", "days": 2}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"tools": {"name": "f"}}, "tools must be a list"),
        ({"tools": "f"}, "tools must be a list"),
        ({"tools": [{"name": "f"}]}, "a tool must be"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "a tool must be"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "of the tool 'f'"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice must be auto"),
        ({"tool_choice": "required"}, "tools has none"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "get_tme"}}},
            "nearest: 'get_time'",
        ),
    ],
)
def test_wrong_tools_are_refused(llm: LLM, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolsError, match=told):
        llm.chat(asked("ok"), **wrong)


def test_a_call_that_is_demanded_has_no_format(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    with load(write_scripted_model(tmp_path / "m.gguf", LOST), "cpu_ref", context=512) as made:
        fields: dict[str, Any] = {"tools": [WEATHER], "response_format": ["yes"], "max_tokens": 200}
        assert made.chat(asked("hello"), tool_choice="required", **fields).tool_calls
        assert made.chat(asked("hello"), tool_choice="none", **fields).text == "yes"


def loaded(tmp_path: Path, *steps: str, template: str = "", control: Sequence[str] = ()) -> LLM:
    """A model whose answers to [x] are these tokens; its template has this text, too."""
    path = write_scripted_model(
        tmp_path / "m.gguf", {"ok": SCRIPTS["ok"], "x": says(*steps)}, call=HERMES + template, control=control
    )
    return load(path, "cpu_ref", context=512)


CHANNELS = "{# <|channel|><|message|> #}"


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (("Sure", ".", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Yes"), "Sure.Yes"),
        (("Use the ", "<|message|>", " mark"), "Use the <|message|> mark"),
        (("<|channel|>", "final", "<|message|>", "Yes"), "Yes"),
    ],
)
def test_an_answer_in_channels_is_the_same_in_pieces_and_whole(
    tmp_path: Path, steps: Sequence[str], text: str
) -> None:
    with loaded(tmp_path, *steps, template=CHANNELS) as made:
        pieces = [*made.stream_chat(asked("x"))]
        assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == text
        assert made.chat(asked("x")).text == text


def test_an_answer_that_happens_to_be_json_with_a_name_is_no_call(tmp_path: Path) -> None:
    text = '{"name": "Anna", "age": 3}'
    with loaded(tmp_path, text) as made:
        made.template.source = made.template.source.replace("<tool_call>", "")  # calls without marks
        answer = made.chat(asked("x"), tools=TOOLS)
        assert (answer.text, answer.tool_calls, answer.finish_reason) == (text, [], "stop")


def test_a_call_that_a_stop_string_cuts_is_not_whole(llm: LLM) -> None:
    answer = llm.chat(asked("weather"), tools=TOOLS, stop=["days"])
    assert answer.finish_reason == "stop"
    assert answer.message["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


def test_nothing_of_a_further_call_is_left_in_the_text(llm: LLM) -> None:
    whole = llm.chat(asked("both"), tools=TOOLS)
    for most in range(12, len(whole.tokens)):
        answer = llm.chat(asked("both"), tools=TOOLS, parallel_tool_calls=False, max_tokens=most)
        if len(answer.tool_calls):
            assert answer.text == "", most


def test_any_text_is_no_format(llm: LLM) -> None:
    answer = llm.chat(asked("think"), response_format={"type": "text"})
    assert (answer.text, answer.reasoning.strip()) == ("Yes.", "Hm.")


def test_calls_keep_their_ids_if_their_pieces_are_given(llm: LLM) -> None:
    chat = llm.prepare_chat(asked("both"), tools=TOOLS)
    handle = llm.submit(chat.prompt, **chat.options)
    pieces = [*chat.pieces(handle)]
    ids = [piece.id for piece in pieces if isinstance(piece, CallBegun)]
    assert [call.id for call in chat.told_apart(handle.result(), pieces).tool_calls] == ids


@pytest.mark.parametrize("variables", [[1], "x", {1: 2}, {"messages": []}, {"add_generation_prompt": False}])
def test_wrong_variables_are_refused(llm: LLM, variables: Any) -> None:
    with pytest.raises(RequestError, match="variables m"):
        llm.chat(asked("ok"), variables=variables)


def test_the_options_of_a_chat_are_those_of_prepare_chat() -> None:
    parameters = signature(LLM.prepare_chat).parameters.values()
    assert {each.name for each in parameters if each.kind is each.KEYWORD_ONLY} == CHAT_OPTIONS
