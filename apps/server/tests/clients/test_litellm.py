"""litellm over a socket: each API under its own provider, and the exception of each fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import litellm
import numpy as np
import pytest
from scripted_model import SCRIPTS
from serving import Served

pytestmark = pytest.mark.filterwarnings(
    "ignore:Item 'summary' on TypedDict"  # pydantic, of a type of openai's that litellm imports
)
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
]


@pytest.fixture(scope="module", autouse=True)
def event_loop_of_litellm() -> Iterator[None]:
    """The event loop of this thread, which litellm would make, and leave open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(params=["openai", "anthropic", "ollama_chat"])
def reached(request: pytest.FixtureRequest, server: Served, key: str) -> dict[str, Any]:
    """The arguments with which litellm reaches the server."""
    base = f"{server.url}/v1" if request.param == "openai" else server.url
    return {"model": f"{request.param}/scripted", "api_base": base, "api_key": key, "num_retries": 0}


def say(name: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Say [{name}]"}]


def test_a_chat_is_answered_whole_and_streamed(reached: dict[str, Any]) -> None:
    for name in ("hello", "euro", "count"):
        given = {**reached, "messages": say(name), "temperature": 0}
        answer: Any = litellm.completion(**given)
        assert answer.choices[0].message.content == SCRIPTS[name].text
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == len(SCRIPTS[name].steps) + 1
        chunks: Any = litellm.completion(**given, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SCRIPTS[name].text


@pytest.mark.skipif(find_spec("mcp") is None, reason="litellm refuses tools without the package mcp")
def test_a_tool_is_called(reached: dict[str, Any]) -> None:
    pytest.importorskip(
        "litellm.responses.mcp.chat_completions_handler", exc_type=ImportError
    )  # for any tool
    answer: Any = litellm.completion(**reached, messages=say("weather"), tools=TOOLS, temperature=0)
    [call] = answer.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments) == {"city": "Köln", "days": 2}
    assert answer.choices[0].finish_reason == "tool_calls"


def test_each_fault_is_an_exception_of_its_own_class(reached: dict[str, Any]) -> None:
    overflow = litellm.ContextWindowExceededError
    if reached["model"].startswith("ollama"):  # litellm knows no words of Ollama for it
        overflow = litellm.BadRequestError
    with pytest.raises(overflow):
        litellm.completion(**reached, messages=[{"role": "user", "content": "a" * 1000}])
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**reached, "model": reached["model"] + "-9"}, messages=say("hello"))
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**reached, "api_key": "wrong"}, messages=say("hello"))
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(**reached, messages=say("hello"), top_p=2)


def test_texts_are_embedded_and_ranked(server: Served, key: str) -> None:
    base = f"{server.url}/v1"
    found: Any = litellm.embedding(
        model="openai/vectors",
        input=["[north]", "[east]"],
        api_base=base,
        api_key=key,
        encoding_format="float",
    )
    np.testing.assert_allclose([each["embedding"] for each in found.data], np.eye(8)[:2], atol=1e-5)
    ranked: Any = litellm.rerank(
        model="hosted_vllm/scores",
        query="?",
        documents=["bad", "a [best]"],
        top_n=1,
        api_base=server.url,
        api_key=key,
    )
    assert [each["index"] for each in ranked.results] == [1]
