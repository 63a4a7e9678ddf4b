"""Fields that clients of vLLM, SGLang, OpenRouter and llama.cpp's server send to the endpoints of OpenAI's API."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from ...errors import InvalidRequestError
from ...generation.requests import AnswerFormat, object_format, schema_format
from .. import fields
from ..fields import ignored, refused, taken
from .service_fields import OpenAIServiceFields

Ids: TypeAlias = Annotated[list[fields.Count], Meta(max_length=1024)]
GuidedJson: TypeAlias = Annotated[
    dict[str, Any] | str | None, taken("the JSON schema, or its text, which the answer obeys")
]
Pattern: TypeAlias = Annotated[str | None, taken("the regular expression, which the whole answer matches")]
Texts: TypeAlias = Annotated[list[str] | None, taken("the texts, one of which is the answer")]
KINDS: Final = "json", "regex", "choice", "grammar"
NO_BEAMS: Final = "answers are sampled token by token"


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """What the answer must be, as vLLM has it."""

    json: GuidedJson = None
    regex: Pattern = None
    choice: Texts = None
    grammar: fields.Grammar = None
    json_object: Annotated[bool | None, taken("whether the answer is any JSON object")] = None


class ForeignFields(OpenAIServiceFields, kw_only=True):
    """Fields of other servers that chat and completions may have."""

    n_predict: Annotated[fields.Length | None, taken("another name of max_tokens")] = None
    repetition_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None, taken("another name of repeat_penalty")
    ] = None
    stop_token_ids: Annotated[
        Ids | None, taken("tokens that end the answer: only those that end it anyway are accepted")
    ] = None
    guided_json: GuidedJson = None
    guided_regex: Pattern = None
    guided_choice: Texts = None
    guided_grammar: fields.Grammar = None
    structured_outputs: Annotated[StructuredOutputs | None, taken("what the answer must be")] = None
    guided_decoding_backend: Annotated[str | None, ignored("there is one")] = None
    guided_whitespace_pattern: Annotated[str | None, ignored("the server bounds spaces itself")] = None
    min_tokens: Annotated[int | None, refused("the model ends its answer; see ignore_eos", (0,))] = None
    skip_special_tokens: Annotated[bool | None, refused("control tokens have no text", (True,))] = None
    spaces_between_special_tokens: Annotated[bool | None, ignored("control tokens have no text")] = None
    include_stop_str_in_output: Annotated[
        bool | None, refused("an answer ends before its stop string", (False,))
    ] = None
    truncate_prompt_tokens: Annotated[int | None, refused("nothing is cut off silently")] = None
    prompt_logprobs: Annotated[int | None, refused("use echo and logprobs of /v1/completions")] = None
    use_beam_search: Annotated[bool | None, refused(NO_BEAMS, (False,))] = None
    length_penalty: Annotated[fields.Number, refused(NO_BEAMS, (1,))] = None
    top_a: Annotated[fields.Number, refused(fields.NOT_SAMPLED, (0,))] = None
    priority: Annotated[int | None, ignored("requests are answered in the order in which they came")] = None
    request_id: Annotated[str | None, ignored("the server gives each answer an id of its own")] = None
    provider: Annotated[Any, ignored("there is one provider")] = None
    models: Annotated[list[str] | None, ignored("the model that is asked for answers, or nobody")] = None
    route: Annotated[str | None, ignored("the model that is asked for answers, or nobody")] = None
    transforms: Annotated[list[str] | None, refused("the conversation is taken as it is sent", ([],))] = None
    usage: Annotated[dict[str, Any] | None, ignored("see stream_options.include_usage")] = None


def guided_formats(body: ForeignFields) -> list[AnswerFormat]:
    """What the answer must be, by the fields of vLLM."""
    outputs = body.structured_outputs or StructuredOutputs()
    found = [object_format("structured_outputs.json_object")] if outputs.json_object else []
    values = [(kind, f"guided_{kind}", getattr(body, f"guided_{kind}")) for kind in KINDS]
    values += [(kind, f"structured_outputs.{kind}", getattr(outputs, kind)) for kind in KINDS]
    for kind, field, value in values:
        if kind == "json" and value is not None:
            found.append(schema_format(_decoded(value, field) if isinstance(value, str) else value, field))
        elif value or (value is not None and kind != "grammar"):
            found.append(AnswerFormat({"type": kind, kind: value}, field))
    return found


def _decoded(schema: str, field: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(schema, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidRequestError(f"{field} is no JSON schema: {error}", param=field) from None
