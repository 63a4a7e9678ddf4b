"""Requests that the tests with openai-python share."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

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


def say(name: str) -> list[Any]:
    return [{"role": "user", "content": f"Say [{name}]"}]


def asked(name: str, **more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": say(name), "temperature": 0, **more}
