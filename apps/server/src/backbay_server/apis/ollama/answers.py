"""Ollama's API: the bodies of answers, which are also the lines of a stream."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ..measures import ChosenLogprob


class ModelDetails(Struct):
    """What kind of file a model is."""

    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""
    format: str = "gguf"


class Model(Struct):
    """A model that there is."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: ModelDetails


class ModelList(Struct):
    """The models that there are."""

    models: list[Model]


class RunningModel(Struct):
    """A model that is loaded."""

    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class RunningModels(Struct):
    """The models that are loaded."""

    models: list[RunningModel]


class PullStatus(Struct):
    """A step of a pull."""

    status: Literal["pulling manifest", "success"]


class ShownModel(Struct):
    """What is known of a model."""

    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "thinking", "vision", "embedding"]]
    modified_at: str


class Version(Struct):
    """The server's version."""

    version: str


class CalledFunction(Struct):
    """A function that the model calls."""

    name: str
    arguments: dict[str, Any]


class CalledTool(Struct):
    """A tool's call."""

    id: str
    function: CalledFunction


class Message(Struct, omit_defaults=True):
    """A piece of the answer, or the whole."""

    role: Literal["assistant", "user"]
    content: str
    thinking: str | None = None
    tool_calls: list[CalledTool] | None = None


class AnswerLine(Struct, kw_only=True, omit_defaults=True):
    """What the lines of chat and generate share. The last line has the numbers; times are in nanoseconds."""

    model: str
    created_at: str
    done: bool | None = None
    done_reason: Literal["stop", "length", "load", "unload"] | None = None
    logprobs: list[ChosenLogprob] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class ChatLine(AnswerLine, kw_only=True, omit_defaults=True):
    """A line of /api/chat."""

    message: Message


class GenerateLine(AnswerLine, kw_only=True, omit_defaults=True):
    """A line of /api/generate."""

    response: str
    thinking: str | None = None


class EmbeddingList(Struct):
    """The vectors of texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class Embedding(Struct):
    """The vector of a text."""

    embedding: list[float]
