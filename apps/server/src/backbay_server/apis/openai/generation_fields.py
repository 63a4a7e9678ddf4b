"""Fields that chat, completions and responses share: how text is generated, and what it must be."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from msgspec import Meta, Struct, to_builtins

from ...errors import InvalidRequestError
from ...generation.requests import AnswerFormat, AnswerOptions, object_format, schema_format
from .. import fields
from ..endpoint import EndpointCall
from ..fields import ignored, taken
from ..options import format_of_fields, reasoning_variables
from .foreign_fields import ForeignFields, guided_formats

Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]

FORBIDDEN: Final = -100  # the bias by which OpenAI's clients forbid a token


class StreamOptions(Struct, forbid_unknown_fields=True):
    """Options of streams."""

    include_usage: Annotated[bool | None, taken("the last chunk has the usage, and no choices")] = None
    include_obfuscation: Annotated[bool | None, ignored("chunks are not padded")] = None


class GenerationFields(ForeignFields, kw_only=True, forbid_unknown_fields=True):
    """How text is generated."""

    model: fields.Model = None
    stream: Annotated[bool | None, taken("whether the answer comes in pieces, as server-sent events")] = None
    stream_options: Annotated[StreamOptions | None, taken("options of the stream")] = None
    n: Annotated[fields.Positive | None, taken("answers to a prompt")] = None
    stop: Annotated[
        fields.StopStrings | None,
        taken("strings that end the answer; the answer does not contain them"),
    ] = None
    seed: Annotated[fields.Seed | None, taken("equal seeds give equal answers")] = None
    temperature: fields.Temperature = None
    top_p: fields.TopP = None
    top_k: Annotated[fields.Count | None, taken("choose among this many tokens; 0: all")] = None
    min_p: fields.MinP = None
    presence_penalty: Annotated[Penalty | None, fields.PRESENCE] = None
    frequency_penalty: Annotated[Penalty | None, fields.FREQUENCY] = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        taken("divides the logits of tokens that occur in the text; 1: off"),
    ] = None
    repeat_last_n: fields.Window = None
    logit_bias: Annotated[
        fields.Biases[Bias] | None,
        taken("added to the logits of these tokens, by their ids or texts; -100 forbids a token"),
    ] = None
    cache_prompt: fields.CachePrompt = None
    metadata: Annotated[dict[str, Any] | None, ignored("nothing is stored")] = None
    ignore_eos: fields.IgnoreEnd = None
    grammar: fields.Grammar = None
    json_schema: fields.JsonSchema = None


def wants_usage(body: GenerationFields) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def require_choices(call: EndpointCall, choices: int) -> None:
    """InvalidRequestError if a request asks for more answers than the server gives."""
    most = call.services.settings.max_choices
    if choices > most:
        raise InvalidRequestError(
            f"the request asks for {choices} answers, at most {most} are given", param="n"
        )


def effort_variables(effort: str | None) -> dict[str, Any]:
    """The variables by which templates are told how much the model reasons."""
    return reasoning_variables(on=None if effort is None else effort != "none", effort=effort)


def options_of(
    body: GenerationFields,
    max_tokens: int | None,
    logprobs: int | None,
    response_format: AnswerFormat | None = None,
) -> AnswerOptions:
    bias = body.logit_bias
    if bias is not None:
        bias = {key: float("-inf") if each <= FORBIDDEN else each for key, each in bias.items()}
    return AnswerOptions(
        max_tokens=max_tokens,
        stop=body.stop,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty if body.repeat_penalty is None else body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        penalty_window=body.repeat_last_n,
        seed=body.seed,
        logit_bias=bias,
        stop_ids=body.stop_token_ids or (),
        logprobs=logprobs,
        reuse=body.cache_prompt,
        response_format=format_of_fields(
            body.grammar, body.json_schema, response_format, *guided_formats(body)
        ),
        ignore_end=bool(body.ignore_eos),
        lora=fields.scales_of(body),
    )


# -- formats of answers -----------------------------------------------------------------------------------


class TextFormat(Struct, tag="text", tag_field="type", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(Struct, tag="json_object", tag_field="type", forbid_unknown_fields=True):
    """Any JSON object, or JSON by a schema, as llama.cpp's server has it."""

    schema: fields.JsonSchema = None


class Schema(Struct, forbid_unknown_fields=True):
    """A schema with a name."""

    schema: Annotated[dict[str, Any], taken("the JSON schema, which the answer obeys")]
    name: Annotated[str | None, ignored("the model sees no name")] = None
    description: Annotated[str | None, ignored("describe the answer in a message")] = None
    strict: Annotated[bool | None, ignored("an answer always obeys its schema")] = None


class ChatSchemaFormat(Struct, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON by a schema, as chat has it."""

    json_schema: Annotated[Schema, taken("the schema")]


class SchemaFormat(Schema, tag="json_schema", tag_field="type", forbid_unknown_fields=True):
    """JSON by a schema, as responses have it."""


class PatternFormat(Struct, tag="regex", tag_field="type", forbid_unknown_fields=True):
    """Text by a regular expression."""

    regex: Annotated[str, taken("the regular expression, which the whole answer matches")]


class GrammarFormat(Struct, tag="grammar", tag_field="type", forbid_unknown_fields=True):
    """Text by a grammar."""

    grammar: Annotated[str, taken("the grammar, in the form of llguidance or of llama.cpp")]


class ChoiceFormat(Struct, tag="choice", tag_field="type", forbid_unknown_fields=True):
    """One of several texts."""

    choice: Annotated[list[str], taken("the texts")]


Others: TypeAlias = TextFormat | ObjectFormat | PatternFormat | GrammarFormat | ChoiceFormat
ChatFormat: TypeAlias = Others | ChatSchemaFormat
ResponsesFormat: TypeAlias = Others | SchemaFormat
FORMAT: Final = taken("what the answer must be: text, JSON, JSON by a schema, or by a grammar")


def format_of(given: ChatFormat | ResponsesFormat | None, field: str) -> AnswerFormat | None:
    """The format for the engine; None if the answer may be any text."""
    if isinstance(given, ObjectFormat):
        return object_format(field) if given.schema is None else schema_format(given.schema, field)
    return None if given is None or isinstance(given, TextFormat) else AnswerFormat(to_builtins(given), field)
