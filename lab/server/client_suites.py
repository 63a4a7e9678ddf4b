"""Runs LangChain's own tests of chat models and embeddings, as its integrations run them, against this server.

python lab/server/client_suites.py             the table of lab/server/clients.md

The server has a scripted model: it answers "ok", calls the tools that a request demands, and ends what it has to write
as soon as a format allows. It needs langchain-tests, pytest-asyncio, langchain-openai, langchain-anthropic and
langchain-ollama.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps" / name) for name in ("server/tests", "engine/tests/inputs")]
ADDRESS = "BACKBAY_SUITE_ADDRESS"
URL = os.environ.get(ADDRESS, "")


class ChatSuite(ChatModelIntegrationTests):
    """What all suites of chat models share: the model calls tools, obeys schemas, and sees nothing."""

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestOpenAI(ChatSuite):
    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        common = {"model": "scripted", "api_key": "none", "base_url": f"{URL}/v1", "max_retries": 0}
        return {**common, "temperature": 0, "stream_usage": True}


class TestOpenAIResponses(TestOpenAI):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestAnthropic(ChatSuite):
    @property
    def chat_model_class(self) -> Any:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        common = {"model": "scripted", "api_key": "none", "base_url": URL, "max_retries": 0}
        return {**common, "temperature": 0, "max_tokens": 512}


class TestOllama(ChatSuite):
    @property
    def supports_anthropic_inputs(self) -> bool:
        return False  # ChatOllama takes none

    @property
    def has_tool_choice(self) -> bool:
        return False  # Ollama's API has none

    @property
    def chat_model_class(self) -> Any:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "scripted", "base_url": URL, "temperature": 0}


class TestOpenAIEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> Any:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        params = {"model": "vectors", "api_key": "none", "base_url": f"{URL}/v1"}
        return {**params, "check_embedding_ctx_length": False}


class TestOllamaEmbeddings(EmbeddingsIntegrationTests):
    @property
    def embeddings_class(self) -> Any:
        return OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "vectors", "base_url": URL}


class Outcomes:
    """A plugin of pytest: counts outcomes by suite, and keeps the failures."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        _, suite, test = report.nodeid.split("::")
        outcome = "expected" if hasattr(report, "wasxfail") else report.outcome
        self.counts.setdefault(suite.removeprefix("Test"), Counter())[outcome] += 1
        if report.failed:
            told = report.longrepr.reprcrash.message.replace("\n", " ")[:300]
            self.failures.append(f"{suite.removeprefix('Test')}, {test}: {told}")

    def lines(self) -> Iterator[str]:
        yield from ("| suite | passed | failed | skipped |", "|---|---|---|---|")
        for suite, found in self.counts.items():
            left_out = found["skipped"] + found["expected"]
            yield f"| {suite} | {found['passed']} | {found['failed']} | {left_out} |"
        yield from ("", *self.failures)


def main() -> int:
    from processes import serving
    from scripted_model import SCRIPTS, says, write_embedder, write_scripted_model

    # where a format takes the model out of its script, it ends what it has begun
    closing = says({'"': 0.4, "}": 0.3, "3": 0.2, "]": 0.1}, loops=True)
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        path, axes = Path(folder), np.eye(8, dtype=np.float32)
        write_scripted_model(path / "scripted.gguf", {"closing": closing, **SCRIPTS})
        write_embedder(path / "vectors.gguf", {"north": axes[0], "east": axes[1]})
        models = path / "scripted.gguf", path / "vectors.gguf"
        with serving(*models, "--backend", "cpu_ref", "--max-loaded", "2") as server:
            os.environ[ADDRESS] = server.url
            options = ["-q", "-c", os.devnull, "--rootdir", folder, "-o", "asyncio_mode=auto"]
            options += ["-o", "asyncio_default_test_loop_scope=session"]  # LangChain keeps connections
            pytest.main([*options, "-p", "no:cacheprovider", __file__, *sys.argv[1:]], plugins=[outcomes])
    print("\n".join(outcomes.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
