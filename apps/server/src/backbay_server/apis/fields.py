"""Fields of requests: each is declared once, with its use: taken, ignored or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import UNSET, Meta, Struct, inspect

from ..errors import InvalidRequestError

MOST_TEXTS: Final = 2048  # of one request, as OpenAI has it
MOST_TOOLS: Final = 128
USE: Final = "x-backbay"  # the key of a field's use in the schema that /openapi.json serves


class FieldRule(NamedTuple):
    """What happens to a field. A refused field may have the values `unless`, which ask for nothing."""

    use: str
    text: str
    unless: tuple[Any, ...] = ()


def taken(text: str) -> Meta:
    """The field has its effect."""
    return _meta("taken", text)


def ignored(text: str) -> Meta:
    """The field may have any value of its type, and has no effect."""
    return _meta("ignored", text)


def refused(text: str, unless: Iterable[Any] = ()) -> Meta:
    """The field is a 400, unless it is absent, null or one of these values, which ask for nothing."""
    return _meta("refused", text, tuple(unless))


def _meta(use: str, text: str, unless: tuple[Any, ...] = ()) -> Meta:
    schema: dict[str, Any] = {USE: use}
    if use == "refused":
        schema["enum"] = [None, *unless]
    return Meta(description=text, extra_json_schema=schema, extra={"use": FieldRule(use, text, unless)})


@cache
def field_uses(kind: type) -> Mapping[str, FieldRule]:
    """The uses of a struct's fields, by their names in JSON."""
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return {
        field.encode_name: field.type.extra["use"]
        for field in found.fields
        if isinstance(field.type, inspect.Metadata) and field.type.extra
    }


def check_refused(body: Any, inside: str = "") -> None:
    """InvalidRequestError if a refused field of a struct, or of a struct in its fields, asks for anything."""
    kind: type = type(body)
    for attribute, name, use in _checked(kind):
        value = getattr(body, attribute)
        if isinstance(value, Struct):
            check_refused(value, f"{inside}{name}.")
        elif use is not None and use.use == "refused" and value not in (None, UNSET, *use.unless):
            place = f"{inside}{name}"
            raise InvalidRequestError(f"{place} cannot be {value!r}: {use.text}", param=place)


def ignored_names(body: Any, inside: str = "") -> list[str]:
    """The ignored fields that a struct has, or a struct in its fields."""
    found: list[str] = []
    kind: type = type(body)
    for attribute, name, use in _checked(kind):
        value = getattr(body, attribute)
        if value is None or value is UNSET:
            continue
        if use is not None and use.use == "ignored":
            found.append(f"{inside}{name}")
        elif isinstance(value, Struct):
            found += ignored_names(value, f"{inside}{name}.")
    return found


@cache
def _checked(kind: type) -> tuple[tuple[str, str, FieldRule | None], ...]:
    if not issubclass(kind, Struct):
        return ()
    named = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return tuple((attribute, name, field_uses(kind).get(name)) for attribute, name in named)


# -- fields that several bodies have -----------------------------------------------------------------------

Count: TypeAlias = Annotated[int, Meta(ge=0)]
Positive: TypeAlias = Annotated[int, Meta(ge=1)]
Length: TypeAlias = Annotated[int, Meta(ge=-1)]  # of an answer, or a window; -1: as long as may be
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Number: TypeAlias = float | None
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
Stops: TypeAlias = Annotated[list[Stop], Meta(max_length=32)]
StopStrings: TypeAlias = Stop | Stops
Biased = TypeVar("Biased")
Biases: TypeAlias = Annotated[dict[str, Biased], Meta(max_length=1 << 16)]  # by tokens' ids, or by texts
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Alternatives: TypeAlias = Annotated[int, Meta(ge=0, le=20)]  # to each token
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

Model: TypeAlias = Annotated[str | None, taken("the model; a server of one model needs no name")]
Texts: TypeAlias = Annotated[
    str | list[str | int | list[int]], taken("a text, token ids, or several of either")
]
Suffix: TypeAlias = Annotated[
    str | None, taken("what follows the answer, for models with tokens to fill in the middle")
]
MaxTokens: TypeAlias = Annotated[
    Length | None, taken("the most tokens of an answer; -1 and by default: what the context holds")
]
Temperature: TypeAlias = Annotated[
    Annotated[float, Meta(ge=0, le=2)] | None, taken("0: the most likely token")
]
TopP: TypeAlias = Annotated[
    Share | None, taken("choose among the tokens that together have this probability")
]
MinP: TypeAlias = Annotated[
    Share | None, taken("choose among tokens with this share of the best one's probability")
]
Window: TypeAlias = Annotated[Length | None, taken("the tokens that penalties look at; -1: all")]
CachePrompt: TypeAlias = Annotated[bool | None, taken("whether an earlier prompt's cache may serve")]
IgnoreEnd: TypeAlias = Annotated[bool | None, taken("whether the model may not end the answer")]
Grammar: TypeAlias = Annotated[str | None, taken("the grammar, which the answer obeys")]
JsonSchema: TypeAlias = Annotated[dict[str, Any] | None, taken("the JSON schema, which the answer obeys")]
TopLogprobs: TypeAlias = Annotated[
    Alternatives | None,
    taken("report log-probabilities, and this many of the most likely tokens with each token"),
]
OneCall: TypeAlias = Annotated[bool | None, taken("false: the answer has at most one call, the first")]
ReasoningEffort: TypeAlias = Annotated[
    Effort | None,
    taken("for templates that know it; none: no reasoning, if the template can switch it off"),
]
PRESENCE: Final = taken("lowers the logits of tokens that occur in the text")
FREQUENCY: Final = taken("lowers the logit of a token for each time that it occurs")
NOT_SAMPLED: Final = "the sampler does not have it"


class AdapterScale(Struct, forbid_unknown_fields=True):
    """An adapter of the model, and its scale."""

    id: Annotated[Count, taken("the adapter's number, as /lora-adapters lists it")]
    scale: Annotated[float, taken("how much it changes the model; 0: not at all")]


class LlamaCppFields(Struct, kw_only=True):
    """Fields of llama.cpp's server that any request may have: adapters, and samplers, slots and limits that this server
    does not have, which clients send with values that ask for nothing.
    """

    typical_p: Annotated[Number, refused(NOT_SAMPLED, (1,))] = None
    top_n_sigma: Annotated[Number, refused(NOT_SAMPLED, (-1, 0))] = None
    xtc_probability: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    xtc_threshold: Annotated[Number, ignored("it belongs to xtc_probability")] = None
    dynatemp_range: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    dynatemp_exponent: Annotated[Number, ignored("it belongs to dynatemp_range")] = None
    dry_multiplier: Annotated[Number, refused(NOT_SAMPLED, (0,))] = None
    dry_base: Annotated[Number, ignored("it belongs to dry_multiplier")] = None
    dry_allowed_length: Annotated[int | None, ignored("it belongs to dry_multiplier")] = None
    dry_penalty_last_n: Annotated[int | None, ignored("it belongs to dry_multiplier")] = None
    dry_sequence_breakers: Annotated[list[str] | None, ignored("it belongs to dry_multiplier")] = None
    mirostat: Annotated[int | None, refused(NOT_SAMPLED, (0,))] = None
    mirostat_tau: Annotated[Number, ignored("it belongs to mirostat")] = None
    mirostat_eta: Annotated[Number, ignored("it belongs to mirostat")] = None
    adaptive_target: Annotated[Number, refused(NOT_SAMPLED, (-1,))] = None
    adaptive_decay: Annotated[Number, ignored("it belongs to adaptive_target")] = None
    min_keep: Annotated[int | None, refused(NOT_SAMPLED, (0,))] = None
    samplers: Annotated[list[str] | str | None, ignored("the order of the sampler is fixed")] = None
    post_sampling_probs: Annotated[
        bool | None, refused("the model's own probabilities are told", (False,))
    ] = None
    lora: Annotated[
        Annotated[list[AdapterScale], Meta(max_length=1024)] | None,
        taken("the adapters that change the model, in place of those that its name asks for"),
    ] = None
    id_slot: Annotated[int | None, ignored("any slot finds the cache of an earlier prompt")] = None
    n_keep: Annotated[int | None, ignored("an answer ends where the context ends")] = None
    n_discard: Annotated[int | None, ignored("an answer ends where the context ends")] = None
    n_indent: Annotated[int | None, ignored("the model chooses the indentation")] = None
    n_cache_reuse: Annotated[int | None, ignored("equal beginnings of prompts are found")] = None
    t_max_prompt_ms: Annotated[int | None, ignored("a client that waits no longer disconnects")] = None
    t_max_predict_ms: Annotated[int | None, ignored("a client that waits no longer disconnects")] = None
    timings_per_token: Annotated[bool | None, ignored("the end of an answer has the timings")] = None
    return_progress: Annotated[bool | None, ignored("prompts tell no progress")] = None
    verbose: Annotated[bool | None, ignored("/apply-template shows the prompt")] = None


def scales_of(body: LlamaCppFields) -> list[tuple[int, float]] | None:
    """The numbers and scales of the adapters that a body asks for; None: it names none."""
    return None if body.lora is None else [(each.id, each.scale) for each in body.lora]
