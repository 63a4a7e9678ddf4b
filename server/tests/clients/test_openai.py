"""openai-python over a socket: every endpoint, whole and streamed, and the exception of each fault."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import openai
import pydantic
import pytest
from openai import OpenAI
from scripted_model import SCRIPTS
from serving import Served

FORMATS = pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}},
]


@pytest.fixture(scope="module")
def client(server: Served, key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        yield client


def say(name: str) -> list[Any]:
    return [{"role": "user", "content": f"Say [{name}]"}]


def asked(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": say(name), "temperature": 0, **more}


# -- models ------------------------------------------------------------------------------------------------------


def test_models_are_listed_and_found(client: OpenAI) -> None:
    assert {model.id for model in client.models.list()} == {"scripted", "vectors", "scores"}
    model = client.models.retrieve("scripted")
    assert (model.id, model.object) == ("scripted", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found"


# -- chat ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ok", "hello", "quiet", "count", "euro", "half", "almost", "json", "stops"])
def test_a_chat_is_answered_whole_and_streamed(client: OpenAI, name: str) -> None:
    answer = client.chat.completions.create(**asked(name))
    assert (answer.object, answer.model) == ("chat.completion", "scripted")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", SCRIPTS[name].text)
    assert (choice.index, choice.finish_reason, choice.message.tool_calls) == (0, "stop", None)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SCRIPTS[name].steps) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    chunks = list(client.chat.completions.create(**asked(name), stream=True))
    assert {(chunk.object, chunk.model, chunk.id) for chunk in chunks} == {
        ("chat.completion.chunk", "scripted", chunks[0].id)
    }
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SCRIPTS[name].text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_in_a_last_chunk_without_choices(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(**asked("hello"), stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_cached_tokens_of_a_prompt_are_reported(client: OpenAI) -> None:
    messages = [{"role": "user", "content": "the same beginning again and again [hello]"}]
    for _ in range(2):
        answer = client.chat.completions.create(**asked("hello") | {"messages": messages})
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 < cached <= answer.usage.prompt_tokens


def test_an_endless_answer_ends_with_its_length(client: OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        choice = client.chat.completions.create(**asked("endless", **{name: 7})).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("length", "la lala lala lala")


def test_stop_strings_end_an_answer_and_are_not_in_it(client: OpenAI) -> None:
    for stop, text in (("STOP", "one "), (["END", "nothing"], "one STOP two ")):
        assert client.chat.completions.create(**asked("stops", stop=stop)).choices[0].message.content == text
        chunks = list(client.chat.completions.create(**asked("stops", stop=stop), stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_answers_have_their_index(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asked("coin") | {"temperature": 1, "n": 4, "seed": 5})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.message.content for choice in answer.choices} <= {"heads", "tails"}
    again = client.chat.completions.create(**asked("coin") | {"temperature": 1, "n": 4, "seed": 5})
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]
    texts = ["", ""]
    for chunk in client.chat.completions.create(**asked("hello", n=2), stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello, world!"] * 2


def test_logprobs_are_those_of_the_script(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asked("coin", logprobs=True, top_logprobs=2))
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert content[0].token == "heads"
    assert content[0].bytes == list(b"heads")
    assert content[0].logprob == pytest.approx(math.log(0.75), abs=1e-3)
    assert [top.token for top in content[0].top_logprobs] == ["heads", "tails"]
    assert content[0].top_logprobs[1].logprob == pytest.approx(math.log(0.25), abs=1e-3)
    chunks = list(client.chat.completions.create(**asked("euro", logprobs=True, top_logprobs=0), stream=True))
    found = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or []
    ]
    joined = b"".join(bytes(token.bytes or []) for token in found)
    assert joined.decode() == SCRIPTS["euro"].text
    assert all(token.top_logprobs == [] for token in found)


def test_a_bias_forbids_and_forces_tokens(client: OpenAI) -> None:
    heads, world = (_id_of(client, piece) for piece in ("heads", " world"))
    for bias, text in (({}, "heads"), ({heads: -100}, "tails"), ({world: 100}, " world")):
        answer = client.chat.completions.create(
            **asked("coin", max_tokens=1, logit_bias={str(id): b for id, b in bias.items()})
        )
        assert answer.choices[0].message.content == text


def _beside(client: OpenAI, path: str) -> str:
    """The address of an endpoint that is not below /v1."""
    return str(client.base_url.copy_with(path=path))


def _id_of(client: OpenAI, piece: str) -> int:
    """The last token whose text is the piece: that of the script."""
    for id in range(257, 2000):
        found: Any = client.post(
            _beside(client, "/detokenize"), body={"model": "scripted", "tokens": [id]}, cast_to=object
        )
        if found["content"] == piece:
            return id
    raise LookupError(piece)


def test_messages_may_be_parts_and_have_many_roles(client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "[hello]"}]},
    ]
    answer = client.chat.completions.create(model="scripted", messages=messages, temperature=0)
    assert answer.choices[0].message.content == "Hello, world!"


def test_fields_without_effect_are_accepted(client: OpenAI) -> None:
    more: dict[str, Any] = {
        "user": "me",
        "store": False,
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "prompt_cache_key": "k",
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "response_format": {"type": "text"},
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "top_p": 0.5,
    }
    assert (
        client.chat.completions.create(**asked("hello", **more)).choices[0].message.content == "Hello, world!"
    )


# -- tools -----------------------------------------------------------------------------------------------------


def test_a_tool_is_called_and_its_result_read(client: OpenAI) -> None:
    answer = client.chat.completions.create(**asked("weather", tools=TOOLS, tool_choice="auto"))
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
    answer = client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS, temperature=0)
    assert answer.choices[0].message.content == "It is sunny."
    assert answer.choices[0].finish_reason == "stop"


def test_calls_of_tools_are_streamed_by_index(client: OpenAI) -> None:
    for name, expected in (
        ("both", [("get_weather", {"city": "Paris", "days": 1}), ("get_time", {"zone": "CET"})]),
        ("talk_and_call", [("get_time", {"zone": "UTC"})]),
    ):
        calls: dict[int, list[str]] = {}
        pieces, content = 0, ""
        for chunk in client.chat.completions.create(**asked(name, tools=TOOLS), stream=True):
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


def test_no_tools_no_calls(client: OpenAI) -> None:
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = client.chat.completions.create(**asked("weather", **more)).choices[0]
        assert choice.finish_reason == "stop"
        assert choice.message.tool_calls is None
        assert choice.message.content == SCRIPTS["weather"].text


@FORMATS
def test_a_call_can_be_demanded(client: OpenAI) -> None:
    properties = {"zone": {"enum": ["UTC"]}}
    schema = {"type": "object", "properties": properties, "required": ["zone"], "additionalProperties": False}
    tools: list[Any] = [*TOOLS, {"type": "function", "function": {"name": "set_zone", "parameters": schema}}]
    choice: Any = {"type": "function", "function": {"name": "set_zone"}}
    message = (
        client.chat.completions.create(**asked("hello", tools=tools, tool_choice=choice)).choices[0].message
    )
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("set_zone", {"zone": "UTC"})


@FORMATS
def test_an_answer_is_parsed_as_a_pydantic_model(client: OpenAI) -> None:
    class Answer(pydantic.BaseModel):
        answer: Literal[41]

    parsed = client.chat.completions.parse(**asked("json"), response_format=Answer).choices[0].message.parsed
    assert parsed == Answer(answer=41)


def test_reasoning_is_apart_from_the_answer(client: OpenAI) -> None:
    message: Any = client.chat.completions.create(**asked("think")).choices[0].message
    assert (message.reasoning_content.strip(), message.content) == ("Hm.", "Yes.")


# -- responses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hello", "euro", "json"])
def test_a_response_is_given_whole_and_streamed(client: OpenAI, name: str) -> None:
    given: dict[str, Any] = {"model": "scripted", "input": f"Say [{name}]", "temperature": 0}
    response = client.responses.create(**given)
    assert response.output_text == SCRIPTS[name].text
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.output_tokens == len(SCRIPTS[name].steps) + 1
    with client.responses.stream(**given) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert "response.output_text.delta" in kinds
    assert final.output_text == SCRIPTS[name].text


def test_a_response_calls_a_function_and_reads_its_result(client: OpenAI) -> None:
    tools: list[Any] = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]
    given: dict[str, Any] = {"model": "scripted", "temperature": 0, "tools": tools}
    first = client.responses.create(**given, input="Say [weather]")
    [call] = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Köln", "days": 2})
    history: list[Any] = [{"role": "user", "content": "Say [weather]"}, *first.output]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    assert client.responses.create(**given, input=[*history, result]).output_text == "It is sunny."


# -- completions, embeddings, and what llama.cpp's server adds -------------------------------------------------


def test_a_prompt_is_completed(client: OpenAI) -> None:
    for prompt in ("Say [hello]", ["Say [hello]", "[euro]"]):
        answer = client.completions.create(model="scripted", prompt=prompt, temperature=0, max_tokens=50)
        assert answer.object == "text_completion"
        assert [choice.text for choice in answer.choices] == ["Hello, world!", SCRIPTS["euro"].text][
            : 1 if isinstance(prompt, str) else 2
        ]
        assert {choice.finish_reason for choice in answer.choices} == {"stop"}
        stream = client.completions.create(
            model="scripted", prompt=prompt, temperature=0, max_tokens=50, stream=True
        )
        texts = [""] * len(answer.choices)
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in answer.choices]


def test_a_completion_can_echo_its_prompt_with_logprobs(client: OpenAI) -> None:
    answer = client.completions.create(
        model="scripted", prompt="Say [coin]", temperature=0, max_tokens=1, echo=True, logprobs=2
    )
    assert answer.choices[0].text == "Say [coin]heads"
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[-2:] == ["[coin]", "heads"]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.token_logprobs[-1] == pytest.approx(math.log(0.75), abs=1e-3)
    assert logprobs.text_offset is not None
    assert logprobs.text_offset[-1] == len("Say [coin]")


@pytest.mark.parametrize("form", ["float", "base64", "default"])
def test_texts_are_embedded(client: OpenAI, form: str) -> None:
    more: dict[str, Any] = {} if form == "default" else {"encoding_format": form}
    answer = client.embeddings.create(model="vectors", input=["[north]", "[north][east]"], **more)
    assert answer.object == "list"
    assert [each.index for each in answer.data] == [0, 1]
    vectors = [
        struct.unpack("<8f", base64.b64decode(each.embedding))
        if isinstance(each.embedding, str)
        else each.embedding
        for each in answer.data
    ]
    np.testing.assert_allclose(vectors, [[1] + [0] * 7, [0.5**0.5] * 2 + [0] * 6], atol=1e-5)
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 3


def test_texts_are_ranked(client: OpenAI) -> None:
    body = {"model": "scores", "query": "?", "documents": ["bad", "a [best]", "a [good]"], "top_n": 2}
    found: Any = client.post("/rerank", body=body, cast_to=object)
    assert [(each["index"], round(each["relevance_score"], 2)) for each in found["results"]] == [
        (1, 3.0),
        (2, 1.0),
    ]


# -- faults ----------------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = {
    "an unknown model": ({"model": "gpt-9"}, openai.NotFoundError, "model_not_found"),
    "no messages": ({"messages": []}, openai.BadRequestError, None),
    "a message without a role": ({"messages": [{"content": "a"}]}, openai.BadRequestError, None),
    "a role that the template refuses": (
        {"messages": [{"role": "function", "name": "f", "content": "a"}]},
        openai.BadRequestError,
        None,
    ),
    "too high a temperature": ({"temperature": 2.5}, openai.BadRequestError, None),
    "a temperature of text": ({"temperature": "hot"}, openai.BadRequestError, None),
    "no answers": ({"n": 0}, openai.BadRequestError, None),
    "too many answers": ({"n": 100000}, openai.BadRequestError, None),
    "no tokens": ({"max_tokens": 0}, openai.BadRequestError, None),
    "21 alternatives": ({"logprobs": True, "top_logprobs": 21}, openai.BadRequestError, None),
    "alternatives without logprobs": ({"top_logprobs": 2}, openai.BadRequestError, None),
    "an unknown token": ({"logit_bias": {"999999": 1}}, openai.BadRequestError, None),
    "a token that is no number": ({"logit_bias": {"a": 1}}, openai.BadRequestError, None),
    "a model that does not answer": ({"model": "vectors"}, openai.BadRequestError, None),
    "audio": ({"modalities": ["audio"]}, openai.BadRequestError, None),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "a" * 1000}]},
        openai.BadRequestError,
        "context_length_exceeded",
    ),
    "a result of no call": (
        {"messages": [{"role": "tool", "tool_call_id": "x", "content": "a"}]},
        openai.BadRequestError,
        None,
    ),
    "a picture for a model that sees none": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
                    ],
                }
            ]
        },
        openai.BadRequestError,
        None,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_request_is_an_exception_of_its_own_class(client: OpenAI, name: str, stream: bool) -> None:
    more, kind, code = FAULTS[name]
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{**asked("hello"), **more}, stream=stream)
    assert type(caught.value) is kind
    body: Any = caught.value.body
    assert body["type"] == "invalid_request_error"
    assert body["message"]
    assert code is None or caught.value.code == code
    assert client.chat.completions.create(**asked("hello")).choices[0].message.content == "Hello, world!"


def test_a_wrong_key_is_an_authentication_error(server: Served) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client:
        for call in (lambda: client.chat.completions.create(**asked("hello")), client.models.list):
            with pytest.raises(openai.AuthenticationError):
                call()


def test_a_fault_in_the_midst_of_a_stream_is_an_api_error(client: OpenAI) -> None:
    chunks: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        chunks.extend(client.chat.completions.create(**asked("faulty"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so far"
    assert caught.value.message
    assert client.chat.completions.create(**asked("hello")).choices[0].message.content == "Hello, world!"


def test_a_fault_before_the_first_byte_is_a_server_error(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**asked("faulty"))
    assert caught.value.status_code == 500
    body: Any = caught.value.body
    assert body["type"] == "server_error"


def test_a_stream_that_is_left_frees_its_slot(client: OpenAI) -> None:
    for _ in range(12):  # three times as many as there are slots
        with client.chat.completions.create(**asked("endless"), stream=True) as stream:
            next(iter(stream))
    assert client.chat.completions.create(**asked("hello")).choices[0].message.content == "Hello, world!"
