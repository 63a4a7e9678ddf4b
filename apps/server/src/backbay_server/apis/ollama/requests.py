"""Ollama's API: the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from .. import fields
from ..fields import ignored, refused, taken

ToolList: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=fields.MOST_TOOLS)]
KeepAlive: TypeAlias = Annotated[
    float | str | None, ignored("a model stays in memory until another model needs the room")
]


class Options(Struct, forbid_unknown_fields=True):
    """How an answer is made."""

    num_predict: Annotated[
        int | None, taken("the most tokens of the answer; -1 and -2: as many as the context holds")
    ] = None
    stop: Annotated[fields.StopStrings | None, taken("strings that end the answer")] = None
    seed: Annotated[int | None, taken("equal seeds give equal answers")] = None
    temperature: Annotated[Annotated[float, Meta(ge=0)] | None, taken("0 is greedy")] = None
    top_k: Annotated[fields.Count | None, taken("choose among this many tokens; 0: all")] = None
    top_p: fields.TopP = None
    min_p: fields.MinP = None
    repeat_penalty: Annotated[Annotated[float, Meta(gt=0)] | None, taken("1: off")] = None
    repeat_last_n: fields.Window = None
    presence_penalty: Annotated[float | None, fields.PRESENCE] = None
    frequency_penalty: Annotated[float | None, fields.FREQUENCY] = None
    num_keep: Annotated[int | None, ignored("a full context ends the answer")] = None
    num_ctx: Annotated[int | None, ignored("the server's --context decides")] = None
    num_batch: Annotated[int | None, ignored("the server decides")] = None
    num_gpu: Annotated[int | None, ignored("the server decides")] = None
    main_gpu: Annotated[int | None, ignored("the server decides")] = None
    num_thread: Annotated[int | None, ignored("the server decides")] = None
    numa: Annotated[bool | None, ignored("the server decides")] = None
    low_vram: Annotated[bool | None, ignored("the server decides")] = None
    use_mmap: Annotated[bool | None, ignored("the server decides")] = None
    use_mlock: Annotated[bool | None, ignored("the server decides")] = None
    f16_kv: Annotated[bool | None, ignored("the server decides")] = None
    logits_all: Annotated[bool | None, ignored("Ollama ignores it too")] = None
    vocab_only: Annotated[bool | None, ignored("Ollama ignores it too")] = None
    embedding_only: Annotated[bool | None, ignored("Ollama ignores it too")] = None
    penalize_newline: Annotated[bool | None, ignored("newlines are penalized like other tokens")] = None
    tfs_z: Annotated[float | None, refused(fields.NOT_SAMPLED, (1.0,))] = None
    typical_p: Annotated[float | None, refused(fields.NOT_SAMPLED, (1.0,))] = None
    mirostat: Annotated[int | None, refused(fields.NOT_SAMPLED, (0,))] = None
    mirostat_tau: Annotated[float | None, ignored("there is no mirostat")] = None
    mirostat_eta: Annotated[float | None, ignored("there is no mirostat")] = None


class CalledFunction(Struct):
    """A function that the assistant called."""

    name: Annotated[str, taken("the tool")]
    arguments: Annotated[dict[str, Any], taken("the arguments")] = {}


class ToolCall(Struct):
    """A tool's call."""

    function: Annotated[CalledFunction, taken("what was called")]
    id: Annotated[str | None, taken("the id of the call")] = None


class Message(Struct):
    """A message of the conversation."""

    role: Annotated[Literal["system", "user", "assistant", "tool"], taken("who speaks")]
    content: Annotated[str | None, taken("the text")] = None
    thinking: Annotated[str | None, taken("the reasoning, for templates that show it")] = None
    images: Annotated[list[str] | None, taken("pictures in base64, if the model sees")] = None
    tool_calls: Annotated[list[ToolCall] | None, taken("the assistant's calls")] = None
    tool_name: Annotated[str | None, taken("the tool of a result")] = None
    tool_call_id: Annotated[str | None, taken("the call of a result")] = None


class ModelBody(Struct, kw_only=True):
    """A body with a model's name; clients still send it by its old key."""

    model: Annotated[str | None, taken("the model's name or alias; :latest may follow")] = None
    name: Annotated[str | None, taken("the old key of `model`")] = None


class ShowRequest(ModelBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/show."""

    verbose: Annotated[bool | None, taken("whether the vocabulary is shown, too")] = None


class PullRequest(ModelBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/pull."""

    stream: Annotated[bool | None, taken("a line for each step; true by default")] = None
    insecure: Annotated[bool | None, ignored("nothing is fetched")] = None
    username: Annotated[str | None, ignored("nothing is fetched")] = None
    password: Annotated[str | None, ignored("nothing is fetched")] = None


class GenerationBody(ModelBody, kw_only=True):
    """What chat and generate share."""

    stream: Annotated[bool | None, taken("a line for each piece; true by default")] = None
    options: Annotated[Options | None, taken("how the answer is made")] = None
    format: Annotated[
        Literal["", "json"] | dict[str, Any] | None,
        taken("json: any JSON object; a JSON schema, which the answer obeys"),
    ] = None
    keep_alive: KeepAlive = None
    think: Annotated[
        bool | str | None, taken("whether the model reasons, for templates that know reasoning")
    ] = None
    logprobs: Annotated[bool | None, taken("report the log-probability of each token")] = None
    top_logprobs: Annotated[
        fields.Alternatives | None, taken("also report this many alternatives to each token")
    ] = None


class ChatRequest(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/chat."""

    messages: Annotated[list[Message] | None, taken("the conversation; without one, the model is loaded")] = (
        None
    )
    tools: Annotated[ToolList | None, taken("the tools, if the model's template knows tools")] = None


class GenerateRequest(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/generate."""

    prompt: Annotated[str | None, taken("the user's message; without one, the model is loaded")] = None
    system: Annotated[str | None, taken("the system's message")] = None
    raw: Annotated[bool | None, taken("the prompt is not formatted by the template")] = None
    images: Annotated[list[str] | None, taken("pictures in base64, if the model sees")] = None
    context: Annotated[list[int] | None, refused("a conversation is sent to /api/chat", ([],))] = None
    suffix: fields.Suffix = None
    template: Annotated[str | None, refused("a request's own template would be a program", ("",))] = None
    width: Annotated[int | None, refused("no model draws", (0,))] = None
    height: Annotated[int | None, refused("no model draws", (0,))] = None
    steps: Annotated[int | None, refused("no model draws", (0,))] = None


class EmbedRequest(ModelBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/embed."""

    input: Annotated[
        str | Annotated[list[str], Meta(max_length=fields.MOST_TEXTS)], taken("a text, or several")
    ]
    truncate: Annotated[bool | None, taken("true cuts a text that is too long; otherwise it is an error")] = (
        None
    )
    dimensions: Annotated[fields.Positive | None, refused("no model is known to have shorter vectors")] = None
    options: Annotated[Options | None, ignored("they are for answers")] = None
    keep_alive: KeepAlive = None


class EmbeddingsRequest(ModelBody, forbid_unknown_fields=True, kw_only=True):
    """The body of /api/embeddings, the older form."""

    prompt: Annotated[str, taken("the text")]
    options: Annotated[Options | None, ignored("they are for answers")] = None
    keep_alive: KeepAlive = None
