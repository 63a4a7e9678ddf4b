"""openai-python over a socket: tools, formats, reasoning, and responses."""

from __future__ import annotations

import json
from typing import Any, Literal

import pydantic
import pytest
from openai import OpenAI
from openai_requests import FORMATS, TOOLS, asked, say
from scripted_model import SCRIPTS


def test_a_tool_is_called_and_its_result_read(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(**asked("weather", tools=TOOLS, tool_choice="auto"))
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Köln", "days": 2}
    messages = [
        *say("weather"),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = openai_client.chat.completions.create(
        model="scripted", messages=messages, tools=TOOLS, temperature=0
    )
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"


def test_calls_of_tools_are_streamed_by_index(openai_client: OpenAI) -> None:
    for name, expected in (
        ("both", [("get_weather", {"city": "Paris", "days": 1}), ("get_time", {"zone": "CET"})]),
        ("talk_and_call", [("get_time", {"zone": "UTC"})]),
    ):
        calls: dict[int, list[str]] = {}
        pieces, content = 0, ""
        for chunk in openai_client.chat.completions.create(**asked(name, tools=TOOLS), stream=True):
            content += chunk.choices[0].delta.content or ""
            for call in chunk.choices[0].delta.tool_calls or []:
                pieces += 1
                if call.index not in calls:
                    assert call.id
                    calls[call.index] = [call.function.name, ""]
                calls[call.index][1] += call.function.arguments or ""
        assert [(called, json.loads(arguments)) for called, arguments in calls.values()] == expected
        assert pieces > 2 * len(calls)  # arguments come as they grow
        assert chunk.choices[0].finish_reason == "tool_calls"
        assert content == ("I will look." if name == "talk_and_call" else "")


def test_no_tools_no_calls(openai_client: OpenAI) -> None:
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = openai_client.chat.completions.create(**asked("weather", **more)).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None
        assert choice.message.content == SCRIPTS["weather"].text


@FORMATS
def test_a_call_can_be_demanded(openai_client: OpenAI) -> None:
    properties = {"zone": {"enum": ["UTC"]}}
    schema = {"type": "object", "properties": properties, "required": ["zone"], "additionalProperties": False}
    tools: list[Any] = [*TOOLS, {"type": "function", "function": {"name": "set_zone", "parameters": schema}}]
    choice: Any = {"type": "function", "function": {"name": "set_zone"}}
    message = (
        openai_client.chat.completions.create(**asked("hello", tools=tools, tool_choice=choice))
        .choices[0]
        .message
    )
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("set_zone", {"zone": "UTC"})


@FORMATS
def test_an_answer_is_parsed_as_a_pydantic_model(openai_client: OpenAI) -> None:
    class Answer(pydantic.BaseModel):
        answer: Literal[41]

    parsed = (
        openai_client.chat.completions.parse(**asked("json"), response_format=Answer)
        .choices[0]
        .message.parsed
    )
    assert parsed == Answer(answer=41)


def test_reasoning_is_apart_from_the_answer(openai_client: OpenAI) -> None:
    message: Any = openai_client.chat.completions.create(**asked("think")).choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("Hm.", "Yes.")


@pytest.mark.parametrize("name", ["hello", "euro", "json"])
def test_a_response_is_given_whole_and_streamed(openai_client: OpenAI, name: str) -> None:
    given: dict[str, Any] = {"model": "scripted", "input": f"Say [{name}]", "temperature": 0}
    response = openai_client.responses.create(**given)
    assert response.output_text == SCRIPTS[name].text
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == len(SCRIPTS[name].steps) + 1
    with openai_client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in kinds
    assert final.output_text == SCRIPTS[name].text


def test_a_response_calls_a_function_and_reads_its_result(openai_client: OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    given: dict[str, Any] = {"model": "scripted", "temperature": 0, "tools": tools}
    first = openai_client.responses.create(**given, input="Say [weather]")
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Köln", "days": 2})
    history: list[Any] = [{"role": "user", "content": "Say [weather]"}, *first.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert openai_client.responses.create(**given, input=[*history, result]).output_text == "It is sunny."
