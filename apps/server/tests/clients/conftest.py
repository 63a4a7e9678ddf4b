"""A server with scripted models on a port of loopback, for clients that connect to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_model import write_embedder, write_reranker, write_scripted_model
from serving import Served, serving

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm would load a list from outside
CLIENTS = {
    "test_anthropic.py": ("anthropic",),
    "test_busy.py": ("anthropic", "openai"),
    "test_langchain.py": ("langchain_anthropic", "langchain_openai"),
    "test_litellm.py": ("litellm",),
    "test_ollama.py": ("ollama",),
    "test_openai_audio.py": ("openai", "soundfile"),
    "test_openai_chat.py": ("openai",),
    "test_openai_endpoints.py": ("openai",),
    "test_openai_faults.py": ("openai",),
    "test_openai_tools.py": ("openai",),
    "test_property_run.py": ("schemathesis",),
}
collect_ignore = [file for file, needed in CLIENTS.items() if any(find_spec(name) is None for name in needed)]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A model that answers by scripts, one that embeds, and one that ranks."""
    folder = tmp_path_factory.mktemp("models")
    axes = np.eye(8, dtype=np.float32)
    return [
        write_scripted_model(folder / "scripted.gguf"),
        write_embedder(folder / "vectors.gguf", {"north": axes[0], "east": axes[1]}),
        write_reranker(folder / "scores.gguf", {"best": 3.0, "good": 1.0}),
    ]


@pytest.fixture(scope="session")
def key() -> str:
    """The key that the server demands."""
    return "sk-scripted"


@pytest.fixture(scope="session")
def server(models: list[Path], key: str) -> Iterator[Served]:
    with serving(*models, parallel=4, max_loaded=3, keys=(key,)) as server:
        yield server


@pytest.fixture(scope="session")
def openai_client(server: Served, key: str) -> Iterator[Any]:
    """openai-python, which does not try again."""
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=300) as client:
        yield client
