"""openai-python over a socket: chat, whole and streamed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from openai import OpenAI
from openai_requests import asked
from scripted_model import SCRIPTS


@pytest.mark.parametrize("name", ["ok", "hello", "quiet", "count", "euro", "half", "almost", "json", "stops"])
def test_a_chat_is_answered_whole_and_streamed(openai_client: OpenAI, name: str) -> None:
    answer = openai_client.chat.completions.create(**asked(name))
    assert (answer.object, answer.model) == ("chat.completion", "scripted")
    choice = answer.choices[0]
    assert (choice.message.role, choice.message.content) == ("assistant", SCRIPTS[name].text)
    assert (choice.index, choice.finish_reason, choice.message.tool_calls) == (0, "stop", None)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(SCRIPTS[name].steps) + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens

    chunks = list(openai_client.chat.completions.create(**asked(name), stream=True))
    assert {(chunk.object, chunk.model, chunk.id) for chunk in chunks} == {
        ("chat.completion.chunk", "scripted", chunks[0].id)
    }
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SCRIPTS[name].text
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_usage_comes_in_a_last_chunk_without_choices(openai_client: OpenAI) -> None:
    chunks = list(
        openai_client.chat.completions.create(
            **asked("hello"), stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_cached_tokens_of_a_prompt_are_reported(openai_client: OpenAI) -> None:
    messages = [{"role": "user", "content": "the same beginning again and again [hello]"}]
    for _ in range(2):
        answer = openai_client.chat.completions.create(**asked("hello") | {"messages": messages})
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert 0 < cached <= answer.usage.prompt_tokens


def test_an_endless_answer_ends_with_its_length(openai_client: OpenAI) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        choice = openai_client.chat.completions.create(**asked("endless", **{name: 7})).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("length", "la lala lala lala")


def test_stop_strings_end_an_answer_and_are_not_in_it(openai_client: OpenAI) -> None:
    for stop, text in (("STOP", "one "), (["END", "nothing"], "one STOP two ")):
        assert (
            openai_client.chat.completions.create(**asked("stops", stop=stop)).choices[0].message.content
            == text
        )
        chunks = list(openai_client.chat.completions.create(**asked("stops", stop=stop), stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_several_answers_have_their_index(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(**asked("coin") | {"temperature": 1, "n": 4, "seed": 5})
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.message.content for choice in answer.choices} <= {"heads", "tails"}
    again = openai_client.chat.completions.create(**asked("coin") | {"temperature": 1, "n": 4, "seed": 5})
    assert [c.message.content for c in again.choices] == [c.message.content for c in answer.choices]
    texts = ["", ""]
    for chunk in openai_client.chat.completions.create(**asked("hello", n=2), stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == ["Hello, world!"] * 2


def test_logprobs_are_those_of_the_script(openai_client: OpenAI) -> None:
    answer = openai_client.chat.completions.create(**asked("coin", logprobs=True, top_logprobs=2))
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert content[0].token == "heads"
    assert content[0].bytes == list(b"heads")
    assert content[0].logprob == pytest.approx(math.log(0.75), abs=1e-3)
    assert [top.token for top in content[0].top_logprobs] == ["heads", "tails"]
    assert content[0].top_logprobs[1].logprob == pytest.approx(math.log(0.25), abs=1e-3)
    chunks = list(
        openai_client.chat.completions.create(**asked("euro", logprobs=True, top_logprobs=0), stream=True)
    )
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


def test_a_bias_forbids_and_forces_tokens(openai_client: OpenAI) -> None:
    heads, world = (_id_of(openai_client, piece) for piece in ("heads", " world"))
    for bias, text in (({}, "heads"), ({heads: -100}, "tails"), ({world: 100}, " world")):
        answer = openai_client.chat.completions.create(
            **asked("coin", max_tokens=1, logit_bias={str(id): b for id, b in bias.items()})
        )
        assert answer.choices[0].message.content == text


def _beside(openai_client: OpenAI, path: str) -> str:
    """The address of an endpoint that is not below /v1."""
    return str(openai_client.base_url.copy_with(path=path))


def _id_of(openai_client: OpenAI, piece: str) -> int:
    """The last token whose text is the piece: that of the script."""
    for id in range(257, 2000):
        found: Any = openai_client.post(
            _beside(openai_client, "/detokenize"), body={"model": "scripted", "tokens": [id]}, cast_to=object
        )
        if found["content"] == piece:
            return id
    raise LookupError(piece)


def test_messages_may_be_parts_and_have_many_roles(openai_client: OpenAI) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "[hello]"}]},
    ]
    answer = openai_client.chat.completions.create(model="scripted", messages=messages, temperature=0)
    assert answer.choices[0].message.content == "Hello, world!"


def test_fields_without_effect_are_accepted(openai_client: OpenAI) -> None:
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
        openai_client.chat.completions.create(**asked("hello", **more)).choices[0].message.content
        == "Hello, world!"
    )
