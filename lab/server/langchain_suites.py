"""LangChain's own tests of chat models and embeddings, as its integrations run them; client_suites.py runs this file.

They need langchain-tests, pytest-asyncio, langchain-openai, langchain-anthropic and langchain-ollama.
"""

from __future__ import annotations

import os
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

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
