"""Requests for text, whichever API they came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeAlias, final

from backbay_engine import Tools

SEEDS: Final = 2**63  # clients give negative ones, too
OWN: Final = (
    "ignore_end",
    "lora",
    "stop_ids",
    "logit_bias",
    "response_format",
)  # options that the engine has in another form
LEAST_SHARE: Final = 1e-9  # clients give a top_p of 0 for the most likely token alone


@final
@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template, and further variables of the template."""

    messages: Sequence[Mapping[str, Any]]
    tools: Tools = field(default_factory=Tools)
    variables: Mapping[str, Any] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What an answer must be, as the engine's response_format takes it, and the field of the request that says so."""

    value: Mapping[str, Any]
    field: str


@final
@dataclass(frozen=True, slots=True)
class InfillGap:
    """The place between two texts, which the answer fills. `others` are names and texts of further files."""

    before: str
    after: str
    others: Sequence[tuple[str, str]] = ()
    plain: bool = False  # whether a model without tokens for gaps may fill it


Prompt: TypeAlias = Conversation | InfillGap | str | Sequence[int]


def schema_format(schema: Mapping[str, Any], field: str) -> AnswerFormat:
    return AnswerFormat({"type": "json_schema", "json_schema": {"schema": schema}}, field)


def object_format(field: str) -> AnswerFormat:
    return AnswerFormat({"type": "json_object"}, field)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How an answer is made: the engine's options. None leaves the choice to the engine."""

    max_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_window: int | None = None
    seed: int | None = None
    logit_bias: Mapping[str, float] | None = None  # by the ids of tokens, or by texts
    stop_ids: Sequence[int] = ()  # tokens that must be among those that end the model's answers
    logprobs: int | None = None
    reuse: bool | None = None
    response_format: AnswerFormat | None = None
    ignore_end: bool = False  # the model may not end the answer: the tokens that do so are forbidden
    lora: Sequence[tuple[int, float]] | None = None  # numbers of the model's adapters, and scales

    def given(self) -> dict[str, Any]:
        """The options that are not None, by the engine's names."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name not in OWN)
        given = {name: value for name, value in values if value is not None}
        if "top_p" in given:
            given["top_p"] = max(given["top_p"], LEAST_SHARE)
        if "seed" in given:
            given["seed"] %= SEEDS
        return given


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRequest:
    """A sound to transcribe: the bytes of its file, and the engine's options. None leaves the choice to the engine."""

    model: str | None
    sound: bytes
    task: str
    language: str | None = None
    prompt: str | None = None
    temperature: float | None = None

    def given(self) -> dict[str, Any]:
        """The options that are not None, by the engine's names."""
        values = {name: getattr(self, name) for name in ("task", "language", "prompt", "temperature")}
        return {name: value for name, value in values.items() if value is not None}


@final
@dataclass(frozen=True, slots=True)
class Request:
    """What a client wants: `n` answers to each prompt. The answers of a prompt stand side by side."""

    model: str | None
    prompts: Sequence[Prompt]
    options: AnswerOptions = AnswerOptions()
    n: int = 1
    echo: bool = False  # an answer begins with its prompt

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n
