"""The bodies of requests for text, and what they ask of the engine."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from ...generation import AnswerOptions
from .. import fields
from ..fields import ignored, taken
from ..options import format_of_fields


class GenerationRequest(fields.LlamaCppFields, kw_only=True, forbid_unknown_fields=True):
    """How text is generated."""

    model: fields.Model = None
    stream: Annotated[bool | None, taken("whether the answer comes in pieces, as server-sent events")] = None
    n_predict: fields.MaxTokens = None
    max_tokens: Annotated[fields.Length | None, taken("another name of n_predict")] = None
    stop: Annotated[
        fields.StopStrings | None, taken("strings that end the answer, which does not have them")
    ] = None
    seed: Annotated[
        fields.Seed | None, taken("equal seeds give equal answers; -1: a new seed for each answer")
    ] = None
    temperature: Annotated[Annotated[float, Meta(ge=0)] | None, taken("0: the most likely token")] = None
    top_p: fields.TopP = None
    top_k: Annotated[fields.Length | None, taken("choose among this many tokens; 0: all")] = None
    min_p: fields.MinP = None
    presence_penalty: Annotated[fields.Number, taken("for tokens that are there already")] = None
    frequency_penalty: Annotated[fields.Number, taken("for each time that a token is there")] = None
    repeat_penalty: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        taken("divides the logits of tokens that are there; 1: off"),
    ] = None
    repeat_last_n: fields.Window = None
    logit_bias: Annotated[
        fields.Biases[float | bool] | list[tuple[int | str, float | bool]] | None,
        taken("added to the logits of these tokens, by their ids or texts; false forbids a token"),
    ] = None
    ignore_eos: fields.IgnoreEnd = None
    n_probs: Annotated[
        fields.Alternatives | None,
        taken("log-probabilities of the tokens, and of this many others beside each; 0: none"),
    ] = None
    grammar: fields.Grammar = None
    json_schema: fields.JsonSchema = None
    cache_prompt: fields.CachePrompt = None
    return_tokens: Annotated[bool | None, taken("whether a whole answer has its tokens")] = None
    response_fields: Annotated[
        Annotated[list[str], Meta(max_length=128)] | None,
        taken("the only fields that a whole answer has; a/b names the field b of a"),
    ] = None


class PromptRequest(GenerationRequest, kw_only=True):
    """A prompt to continue, or several."""

    prompt: fields.Texts
    n_cmpl: Annotated[fields.Positive | None, taken("answers to a prompt")] = None
    n: Annotated[fields.Positive | None, taken("another name of n_cmpl")] = None


class ExtraFile(Struct, forbid_unknown_fields=True):
    """Text of another file."""

    text: Annotated[str, taken("the text")]
    filename: Annotated[str | None, taken("the file's name, if the model has tokens for files")] = None
    time: Annotated[float | None, ignored("the order of the texts tells it")] = None


class InfillRequest(GenerationRequest, kw_only=True):
    """A text with a gap, which the answer fills."""

    input_prefix: Annotated[str, taken("the text before the gap")]
    input_suffix: Annotated[str, taken("the text after the gap")]
    input_extra: Annotated[
        Annotated[list[ExtraFile], Meta(max_length=256)] | None,
        taken("texts of other files, before all others"),
    ] = None
    prompt: Annotated[str | None, taken("the beginning of what fills the gap")] = None


def options_of(body: GenerationRequest) -> AnswerOptions:
    most = body.max_tokens if body.n_predict is None else body.n_predict
    bias = body.logit_bias
    if bias is not None:
        pairs = bias.items() if isinstance(bias, dict) else bias
        bias = {str(key): float("-inf") if each is False else float(each) for key, each in pairs}
    return AnswerOptions(
        max_tokens=None if most == -1 else most,
        stop=body.stop,
        temperature=body.temperature,
        top_k=None if body.top_k is None else max(0, body.top_k),
        top_p=body.top_p,
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        penalty_window=body.repeat_last_n,
        seed=None if body.seed == -1 else body.seed,
        logit_bias=bias,
        logprobs=body.n_probs or None,
        reuse=body.cache_prompt,
        response_format=format_of_fields(body.grammar, body.json_schema),
        ignore_end=bool(body.ignore_eos),
        lora=fields.scales_of(body),
    )
