"""openai-python over a socket: the exception of each fault."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from openai_requests import asked
from patience import wait_until
from serving import Served

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
def test_a_bad_request_is_an_exception_of_its_own_class(
    openai_client: OpenAI, name: str, stream: bool
) -> None:
    more, kind, code = FAULTS[name]
    with pytest.raises(kind) as caught:
        openai_client.chat.completions.create(**{**asked("hello"), **more}, stream=stream)
    assert type(caught.value) is kind
    body: Any = caught.value.body
    assert body["type"] == "invalid_request_error"
    assert body["message"]
    assert code is None or caught.value.code == code
    assert (
        openai_client.chat.completions.create(**asked("hello")).choices[0].message.content == "Hello, world!"
    )


def test_a_wrong_key_is_an_authentication_error(server: Served) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as openai_client:
        for call in (
            lambda: openai_client.chat.completions.create(**asked("hello")),
            openai_client.models.list,
        ):
            with pytest.raises(openai.AuthenticationError):
                call()


def test_a_fault_in_the_midst_of_a_stream_is_an_api_error(openai_client: OpenAI) -> None:
    chunks: list[Any] = []
    with pytest.raises(openai.APIError) as caught:
        chunks.extend(openai_client.chat.completions.create(**asked("faulty"), stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so far"
    assert caught.value.message
    assert (
        openai_client.chat.completions.create(**asked("hello")).choices[0].message.content == "Hello, world!"
    )


def test_a_fault_before_the_first_byte_is_a_server_error(openai_client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        openai_client.chat.completions.create(**asked("faulty"))
    assert caught.value.status_code == 500
    body: Any = caught.value.body
    assert body["type"] == "server_error"


def test_a_stream_that_is_left_frees_its_slot(openai_client: OpenAI, server: Served) -> None:
    for _ in range(12):  # three times as many as there are slots
        with openai_client.chat.completions.create(**asked("endless"), stream=True) as stream:
            next(iter(stream))
    wait_until(lambda: not server.busy("scripted"))
