"""Pictures in the forms of Anthropic and Ollama are seen as those in OpenAI's."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from serving import client_of, serving_app
from starlette.types import Receive, Scope, Send

from backbay_server import application
from backbay_server.pictures import PictureFetcher

PIL = pytest.importorskip("PIL.Image")
MODELS = Path(__file__).parents[4] / "examples" / "models"
NAME = "backbay-tiny-vision-f16"
QUESTION = "What colour is the shape?"
NO_PICTURE = base64.b64encode(b"no picture at all").decode()


def picture(form: str) -> str:
    """A red square in base64."""
    file, shown = io.BytesIO(), PIL.new("RGB", (240, 240), (250, 250, 250))
    shown.paste((215, 40, 45), (30, 30, 110, 110))
    shown.save(file, form)
    return base64.b64encode(file.getvalue()).decode()


def openai(data: str) -> tuple[str, dict[str, Any]]:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    content = [part, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return "/v1/chat/completions", body


def anthropic(data: str) -> tuple[str, dict[str, Any]]:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return "/v1/messages", body


def ollama_chat(data: str) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": QUESTION, "images": [data]}]
    return "/api/chat", {
        "messages": messages,
        "stream": False,
        "options": {"num_predict": 8, "temperature": 0},
    }


def ollama_generate(data: str) -> tuple[str, dict[str, Any]]:
    options = {"num_predict": 8, "temperature": 0}
    return "/api/generate", {"prompt": QUESTION, "images": [data], "stream": False, "options": options}


def text_of(path: str, found: Any) -> str:
    match path:
        case "/v1/chat/completions":
            return found["choices"][0]["message"]["content"]
        case "/v1/messages":
            return "".join(block["text"] for block in found["content"])
        case "/api/chat":
            return found["message"]["content"]
        case _:
            return found["response"]


def asked(*requests: tuple[str, dict[str, Any]], **settings: Any) -> list[tuple[int, Any]]:
    async def asking() -> list[tuple[int, Any]]:
        async with client_of(folders=(str(MODELS),), context=256, **settings) as client:
            found = [await client.post(path, json={"model": NAME, **body}) for path, body in requests]
            return [(each.status_code, each.json()) for each in found]

    return asyncio.run(asking())


def test_a_picture_is_seen_in_every_form() -> None:
    forms = [
        form(picture(kind))
        for kind in ("PNG", "BMP")
        for form in (openai, anthropic, ollama_chat, ollama_generate)
    ]
    found = asked(*forms)
    assert [status for status, _ in found] == [200] * len(forms)
    texts = [text_of(path, body).strip() for (path, _), (_, body) in zip(forms, found, strict=True)]
    assert texts == ["red"] * len(forms)


def test_a_picture_that_cannot_be_taken_is_a_400_in_every_form() -> None:
    found = asked(*(form(NO_PICTURE) for form in (openai, anthropic, ollama_chat, ollama_generate)))
    assert [status for status, _ in found] == [400] * 4


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host of pictures on loopback, which the server takes for a public one."""

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": base64.b64decode(picture("PNG"))})

    with serving_app(show) as address:
        monkeypatch.setattr(
            application, "PictureFetcher", partial(PictureFetcher, may_reach=lambda ip: ip.is_loopback)
        )
        yield address


def test_a_picture_at_an_allowed_host_is_seen_in_every_form(host: str) -> None:
    url, text = f"http://{host}/red.png", {"type": "text", "text": QUESTION}
    said = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, text]}
    asks = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}, text]}
    item = {
        "role": "user",
        "content": [{"type": "input_image", "image_url": url}, {"type": "input_text", "text": QUESTION}],
    }
    chat, message, response, count = asked(
        ("/v1/chat/completions", {"messages": [said], "max_tokens": 8, "temperature": 0}),
        ("/v1/messages", {"messages": [asks], "max_tokens": 8, "temperature": 0}),
        ("/v1/responses", {"input": [item], "max_output_tokens": 8, "temperature": 0}),
        ("/v1/messages/count_tokens", {"messages": [asks]}),
        picture_hosts=(host,),
    )
    assert chat[1]["choices"][0]["message"]["content"].strip() == "red"
    assert message[1]["content"][0]["text"].strip() == "red"
    assert response[1]["output"][0]["content"][0]["text"].strip() == "red"
    usage = message[1]["usage"]
    assert count[1]["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_picture_at_another_host_is_a_400(host: str) -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"http://{host}/red.png"}}]
    body = {"messages": [{"role": "user", "content": parts}]}
    [(status, found)] = asked(("/v1/chat/completions", body), picture_hosts=("pictures.test",))
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
    assert "no pictures are fetched from the host" in found["error"]["message"]


def test_a_picture_elsewhere_is_not_fetched() -> None:
    source = {"type": "url", "url": "http://127.0.0.1:9/picture.png"}
    body = {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 8}
    [(status, found)] = asked(("/v1/messages", body))
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")
