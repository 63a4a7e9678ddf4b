"""Pictures in chat, for the shipped model that sees."""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from typing import Any

import pytest
from serving import client_of

from backbay_engine import load

PIL = pytest.importorskip("PIL.Image")
MODELS = Path(__file__).parents[5] / "examples" / "models"
NAME = "backbay-tiny-vision-f16"


def picture(color: tuple[int, int, int]) -> str:
    file = io.BytesIO()
    PIL.new("RGB", (64, 64), color).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def message(url: str, count: int = 1) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}}] * count
    return {"role": "user", "content": [*parts, {"type": "text", "text": "what color ?"}]}


def asked(sent: dict[str, Any]) -> Any:
    async def asking() -> Any:
        async with client_of(folders=(str(MODELS),), context=256) as client:
            body = {"model": NAME, "messages": [sent], "max_tokens": 8, "temperature": 0}
            found = await client.post("/v1/chat/completions", json=body)
            return found.status_code, found.json()

    return asyncio.run(asking())


def test_a_picture_is_seen_as_by_the_engine():
    sent = message(picture((200, 10, 10)))
    projector = MODELS / f"mmproj-{NAME}.gguf"
    with load(MODELS / f"{NAME}.gguf", "cpu_ref", context=256, projector=projector) as llm:
        whole = llm.chat([sent], max_tokens=8, temperature=0)
    status, body = asked(sent)
    assert status == 200
    assert body["choices"][0]["message"]["content"] == whole.text
    assert body["usage"]["prompt_tokens"] == whole.timings.prompt_tokens


@pytest.mark.parametrize(
    "url", ["data:image/png;base64,AAAA", "data:image/png;base64,%", "data:,", "http://x/y.png"]
)
def test_a_picture_that_cannot_be_taken_is_a_400(url: str):
    status, body = asked(message(url))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")


def test_pictures_are_counted():
    status, body = asked(message(picture((1, 2, 3)), count=100))
    assert (status, body["error"]["message"]) == (
        400,
        "the conversation has 100 pictures, at most 64 are taken",
    )
