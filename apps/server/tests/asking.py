"""One request to a server of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from serving import chunks_of, client_of


def ask(model: Path, path: str, body: dict[str, Any], **settings: Any) -> Any:
    """The status, and the body of the answer: its chunks if it is streamed."""

    async def asking() -> Any:
        async with client_of(model, **settings) as client:
            found = await client.post(path, json=body)
            streamed = found.headers["content-type"].startswith("text/event-stream")
            return found.status_code, chunks_of(found.text) if streamed else found.json()

    return asyncio.run(asking())


def ask_chat(file: Path, script: str, *, context: int = 512, **fields: Any) -> Any:
    """The answer of a script to a message."""
    messages = [{"role": "user", "content": f"[{script}]"}]
    return ask(
        file, "/v1/chat/completions", {"model": "scripted", "messages": messages, **fields}, context=context
    )
