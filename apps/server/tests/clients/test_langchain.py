"""LangChain over a socket: chat models of OpenAI's and of Anthropic's API, and embeddings."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import anthropic
import numpy as np
import openai
import pydantic
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from scripted_model import SCRIPTS
from serving import Served


@tool
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city}: sunny for {days} days"


@pytest.fixture(params=["openai", "anthropic"])
def chat(request: pytest.FixtureRequest, server: Served, key: str) -> Any:
    common: dict[str, Any] = {"model": "scripted", "temperature": 0, "max_retries": 0, "timeout": 300}
    if request.param == "openai":
        return ChatOpenAI(base_url=f"{server.url}/v1", api_key=SecretStr(key), stream_usage=True, **common)
    return ChatAnthropic(base_url=server.url, api_key=SecretStr(key), max_tokens=100, **common)


def test_a_chat_is_answered_whole_and_streamed(chat: Any) -> None:
    for name in ("hello", "euro", "count"):
        messages = [SystemMessage("Be brief."), HumanMessage(f"Say [{name}]")]
        answer = chat.invoke(messages)
        assert answer.text == SCRIPTS[name].text
        assert answer.usage_metadata["output_tokens"] == len(SCRIPTS[name].steps) + 1
        whole = AIMessageChunk("")
        for chunk in chat.stream(messages):
            whole += chunk
        assert whole.text == SCRIPTS[name].text
        assert whole.usage_metadata is not None
        assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]


def test_a_tool_is_called_and_its_result_read(chat: Any) -> None:
    bound = chat.bind_tools([get_weather])
    history: list[Any] = [HumanMessage("Say [weather]")]
    called: AIMessage = bound.invoke(history)
    [call] = called.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Köln", "days": 2})
    result: ToolMessage = get_weather.invoke(call)
    assert bound.invoke([*history, called, result]).text == "It is sunny."
    whole = AIMessageChunk("")
    for chunk in bound.stream(history):
        whole += chunk
    assert [(each["name"], each["args"]) for each in whole.tool_calls] == [(call["name"], call["args"])]


@pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
def test_an_answer_is_parsed_as_a_pydantic_model(chat: Any, method: str) -> None:
    class Answer(pydantic.BaseModel, extra="forbid"):
        """The answer."""

        answer: Literal[41]

    assert chat.with_structured_output(Answer, method=method).invoke("Say [json]") == Answer(answer=41)


def test_stop_strings_end_an_answer(chat: Any) -> None:
    assert chat.invoke("Say [stops]", stop=["STOP"]).text == "one "


def test_too_long_a_prompt_and_an_unknown_model_are_told_apart(chat: Any) -> None:
    bad = (openai.BadRequestError, anthropic.BadRequestError)
    with pytest.raises(bad, match=r"maximum context length|context"):
        chat.invoke("a" * 1000)
    with pytest.raises((openai.NotFoundError, anthropic.NotFoundError)):
        chat.model_copy(update={"model": "none", "model_name": "none"}).invoke("hello")


def test_a_prompt_is_completed(server: Served, key: str) -> None:
    llm = OpenAI(
        base_url=f"{server.url}/v1", api_key=SecretStr(key), model="scripted", temperature=0, max_retries=0
    )
    assert llm.invoke("Say [hello]") == "Hello, world!"
    assert "".join(llm.stream("Say [hello]")) == "Hello, world!"


def test_texts_are_embedded(server: Served, key: str) -> None:
    found = OpenAIEmbeddings(
        base_url=f"{server.url}/v1",
        api_key=SecretStr(key),
        model="vectors",
        check_embedding_ctx_length=False,  # it would send the tokens of OpenAI's own vocabulary
    ).embed_documents(["[north]", "[east]"])
    np.testing.assert_allclose(found, np.eye(8)[:2], atol=1e-5)
