"""The bodies of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType, defstruct, to_builtins
from msgspec.structs import fields

from ..measures import ChosenLogprob, Timings

StopType: TypeAlias = Literal["eos", "limit", "word"]


class Chunk(Struct):
    """What a step adds to an answer; the last event of a stream is a `Completion`."""

    index: int
    content: str
    tokens: Sequence[int]
    tokens_predicted: int
    tokens_evaluated: int
    stop: Literal[False] = False
    id_slot: int = -1
    completion_probabilities: list[ChosenLogprob] | UnsetType = UNSET


class GenerationSettings(Struct):
    """How the answer was made, as far as the request told."""

    n_predict: int
    n_ctx: int
    stream: bool


class Completion(Struct):
    """A whole answer, or the end of its stream."""

    index: int
    content: str
    tokens: list[int]
    model: str
    prompt: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    has_new_line: bool
    stop_type: StopType
    stopping_word: str
    generation_settings: GenerationSettings
    timings: Timings
    truncated: Literal[False] = False
    stop: Literal[True] = True
    id_slot: int = -1
    completion_probabilities: list[ChosenLogprob] | UnsetType = UNSET


CompletionFields: Any = defstruct(
    "CompletionFields", [(each.name, each.type | UnsetType, UNSET) for each in fields(Completion)]
)
"""A whole answer, or those of its fields that a request's `response_fields` names."""


def select_fields(whole: Completion, names: Sequence[str]) -> dict[str, Any]:
    """The answer with these fields alone; a/b names the field b of a. What is not there is left out."""
    found, whole_fields = {}, to_builtins(whole)
    for name in names:
        value: Any = whole_fields
        for part in name.split("/"):
            value = value.get(part, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[name] = value
    return found
