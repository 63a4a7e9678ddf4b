"""Calls of tools: in the forms of several models, and with arguments that obey their schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from asking import ask, ask_chat
from scripted_model import SCRIPTS, says, write_scripted_model

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CALLS, CALL, SEP, CALLED, OVER = (
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "call\u2581begin", "sep", "call\u2581end", "calls\u2581end")
)
DSML = "\uff5cDSML\uff5c"
FORMS: Mapping[
    str, tuple[str, str]
] = {  # the answer, a token between two ~; and what the template shows of the form
    "channels": (
        # the model of the tests would end at the whole <|end|>
        (
            "<|channel|>~analysis~<|message|>~Hm~<|en~d|>~<|start|>~assistant~<|channel|>~commentary to=~functions.~"
            'get_~weather ~<|constrain|>~json~<|message|>~{"ci~ty": "~Bonn~"}'
        ),
        "<|channel|><|message|>",
    ),
    "Mistral": (
        '[THINK]~Hm~[/THINK]~[TOOL_CALLS]~get_~weather~[ARGS]~{"ci~ty": "~Bonn~"}',
        "[THINK][/THINK][TOOL_CALLS][ARGS]",
    ),
    "DeepSeek": (
        f'<think>~Hm~</think>~{CALLS}~{CALL}~get_~weather~{SEP}~{{"ci~ty": "~Bonn~"}}~{CALLED}~{OVER}',
        f"</think>{CALLS}{CALL}",
    ),
    "Qwen 3 Coder": (
        (
            "<think>~Hm~</think>~<tool_call>~\n<fun~ction=~get_~weather~>\n<para~meter=ci~ty>\n~Bo~nn~\n</para~meter>\n"
            "~</fun~ction>\n~</tool_call>"
        ),
        "</think><tool_call><function=<parameter=",
    ),
    "GLM": (
        (
            "<think>~Hm~</think>~<tool_call>~get_~weather~\n~<arg_key>~city~</arg_key>~\n~<arg_value>~Bo~nn~</arg_value>~\n"
            "~</tool_call>"
        ),
        "</think><tool_call><arg_key><arg_value>",
    ),
    "DeepSeek V3.2": (
        (
            f'<think>~Hm~</think>~<~{DSML}~function_calls>\n<~{DSML}~invoke ~name="~get_~weather~">\n<~{DSML}~parameter '
            f'name~="city" string="true">~Bo~nn~</~{DSML}~parameter>\n</~{DSML}~invoke>\n</~{DSML}~function_calls>'
        ),
        f"</think>{DSML}",
    ),
    "Kimi": (
        (
            "<think>~Hm~</think>~<|tool_calls_section_begin|>~<|tool_call_begin|>~functions.~get_~weather:~0~"
            '<|tool_call_argument_begin|>~{"ci~ty": "~Bonn~"}~<|tool_call_end|>~<|tool_calls_section_end|>'
        ),
        "</think><|tool_call_begin|>",
    ),
    "Gemma": (
        '<think>~Hm~</think>~<|tool_call>~call:~get_~weather~{ci~ty:~<|"|>~Bo~nn~<|"|>~}~<tool_call|>',
        '</think><|tool_call><|"|>',
    ),
    "Llama": ('{"na~me": "~get_~weather~", "par~ameters": {~"city": "~Bonn~"}}', ""),
}
# a format takes the model out of its script, where it does what the first script says: it ends
LOST = {"quiet": SCRIPTS["quiet"], **SCRIPTS}


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls a tool in a form of its own, after reasoning unless it is Llama."""
    answer, shown = FORMS[request.param]
    steps = answer.split("~")
    # a token that comes twice has two ids in the model of the tests, so it is plain text there
    marks = [step for step in steps if step[0] in "<[" and step[-1] in ">]" and steps.count(step) == 1]
    control = marks if request.param != "channels" else []
    path = tmp_path_factory.mktemp(request.param) / "scripted.gguf"
    scripts = {"quiet": says(), "weather": says(*steps)}
    return write_scripted_model(path, scripts, call=shown, control=control)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("models") / "scripted.gguf", LOST)


def tool(*, strict: bool = False, **schema: Any) -> dict[str, Any]:
    function = {"name": "get_weather", "parameters": schema or CITY, **({"strict": True} if strict else {})}
    return {"type": "function", "function": function}


def told(model: Path, *, stream: bool, **fields: Any) -> tuple[str, dict[str, str], str]:
    """Reasoning, calls by name, and the finish of an answer."""
    status, body = ask_chat(model, "weather", stream=stream, temperature=0, context=2048, **fields)
    assert status == 200, body
    if not stream:
        [choice] = body["choices"]
        message = choice["message"]
        calls = {
            each["function"]["name"]: each["function"]["arguments"] for each in message.get("tool_calls", ())
        }
        assert not message["content"]
        return message.get("reasoning_content", ""), calls, choice["finish_reason"]
    deltas = [chunk["choices"][0]["delta"] for chunk in body[:-1]]
    assert not any(delta.get("content") for delta in deltas)
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    names = [part["name"] for part in parts if "name" in part]
    assert len(parts) > 3  # the arguments come in pieces
    arguments = "".join(part.get("arguments", "") for part in parts)
    reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    return reasoning, dict.fromkeys(names, arguments), body[-2]["choices"][0]["finish_reason"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.few(6)
def test_reasoning_and_calls_are_found_in_every_form(form: Path, stream: bool) -> None:
    reasoning, calls, finish = told(form, stream=stream, tools=[tool()])
    assert reasoning == ("" if "Llama" in str(form) else "Hm")
    assert {name: json.loads(text) for name, text in calls.items()} == {"get_weather": {"city": "Bonn"}}
    assert finish == "tool_calls"


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.few(6)
def test_strict_arguments_obey_their_schema_in_every_form(form: Path, choice: str) -> None:
    if "Gemma" in str(form):
        status, body = ask_chat(form, "weather", tools=[tool(strict=True)], tool_choice=choice)
        assert (status, body["error"]["param"]) == (400, "tools")
        return
    reasoning, calls, finish = told(form, stream=False, tools=[tool(strict=True)], tool_choice=choice)
    assert reasoning == ("Hm" if choice == "auto" and "Llama" not in str(form) else "")
    assert {name: json.loads(text) for name, text in calls.items()} == {"get_weather": {"city": "Oslo"}}
    assert finish == "tool_calls"


@pytest.mark.few(4)
def test_an_answer_in_a_format_has_no_channel(form: Path) -> None:
    choice = {"type": "choice", "choice": ["yes"]}
    _, body = ask_chat(form, "weather", response_format=choice, temperature=0)
    assert body["choices"][0]["message"]["content"] == "yes"


ANSWERED = {
    "type": "object",
    "properties": {"answer": {"enum": [42]}},
    "required": ["answer"],
    "additionalProperties": False,
}


def test_an_answer_is_a_call_or_in_the_format(model: Path) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": ANSWERED}}
    fields = {"tools": [tool(strict=True)], "response_format": wanted}
    for stream in (False, True):
        _, calls, finish = told(model, stream=stream, **fields)
        assert {name: json.loads(text) for name, text in calls.items()} == {"get_weather": {"city": "Oslo"}}
        assert finish == "tool_calls"
    _, body = ask_chat(model, "json", temperature=0, **fields)
    assert json.loads(body["choices"][0]["message"]["content"]) == {"answer": 42}


def test_responses_and_messages_take_tools_with_a_format(model: Path) -> None:
    function = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    body: dict[str, Any] = {"model": "scripted", "tools": [function], "temperature": 0}
    body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": ANSWERED}}
    _, found = ask(model, "/v1/responses", {**body, "input": "[weather]"})
    assert [each["type"] for each in found["output"]] == ["function_call"]
    _, found = ask(model, "/v1/responses", {**body, "input": "[json]"})
    assert json.loads(found["output"][0]["content"][0]["text"]) == {"answer": 42}
    used = {"name": "get_weather", "input_schema": CITY, "strict": True}
    body = {"model": "scripted", "tools": [used], "temperature": 0, "max_tokens": 400}
    wanted = {"type": "json_schema", "schema": ANSWERED}
    for place in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
        for script, kind in (("weather", "tool_use"), ("json", "text")):
            messages = [{"role": "user", "content": f"[{script}]"}]
            _, found = ask(model, "/v1/messages", {**body, **place, "messages": messages})
            assert [block["type"] for block in found["content"]] == [kind]


def test_a_wrong_format_beside_tools_is_named(model: Path) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    status, body = ask_chat(model, "weather", tools=[tool()], response_format=wanted)
    assert (status, body["error"]["param"]) == (400, "response_format")


def test_a_strict_tool_leaves_text_free(model: Path) -> None:
    _, body = ask_chat(model, "hello", tools=[tool(strict=True)], temperature=0)
    assert body["choices"][0]["message"]["content"] == "Hello, world!"
    _, body = ask_chat(model, "think", tools=[tool(strict=True)], temperature=0)
    assert body["choices"][0]["message"]["reasoning_content"] == "\nHm.\n"


def test_responses_and_messages_have_strict_tools_too(model: Path) -> None:
    function = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
    body = {"model": "scripted", "input": "[weather]", "tools": [function], "temperature": 0}
    _, found = ask(model, "/v1/responses", body)
    [called] = found["output"]
    assert json.loads(called["arguments"]) == {"city": "Oslo"}
    used = {"name": "get_weather", "input_schema": CITY, "strict": True}
    messages = [{"role": "user", "content": "[weather]"}]
    body = {"model": "scripted", "messages": messages, "tools": [used], "temperature": 0, "max_tokens": 400}
    _, found = ask(model, "/v1/messages", body)
    [block] = found["content"]
    assert block["input"] == {"city": "Oslo"}


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    "schema", [{"not": {}}, {"type": "string", "pattern": "("}, {"$ref": "#/$defs/none"}]
)
def test_a_strict_schema_that_cannot_be_obeyed_is_a_400(model: Path, schema: Any, choice: str) -> None:
    tools = [tool(strict=True, **schema)]
    status, body = ask_chat(model, "weather", tools=tools, tool_choice=choice)
    assert (status, body["error"]["type"], body["error"]["param"]) == (400, "invalid_request_error", "tools")
