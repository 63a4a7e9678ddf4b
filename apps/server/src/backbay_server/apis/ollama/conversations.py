"""From Ollama's bodies to the requests of the generator."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Any, Final

from backbay_engine import Tools

from ...errors import InvalidRequestError
from ...generation.requests import (
    AnswerFormat,
    AnswerOptions,
    Conversation,
    InfillGap,
    Prompt,
    Request,
    object_format,
    schema_format,
)
from ..options import reasoning_variables
from . import requests as given

_KINDS: Final = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}


def chat_request(body: given.ChatRequest) -> Request:
    messages = [_message(message, f"messages[{place}]") for place, message in enumerate(body.messages or ())]
    conversation = Conversation(messages, Tools(body.tools or ()), _variables(body))
    return Request(name_of(body), [conversation], options_of(body))


def generate_request(body: given.GenerateRequest) -> Request:
    prompt: Prompt = body.prompt or ""
    if body.suffix or body.raw:
        kind, param = ("prompt with a suffix", "suffix") if body.suffix else ("raw prompt", "raw")
        if body.images or body.system:
            raise InvalidRequestError(f"a {kind} has neither images nor a system's message", param=param)
        prompt = InfillGap(body.prompt or "", body.suffix) if body.suffix else prompt
    else:
        messages = [{"role": "system", "content": body.system}] if body.system else []
        content = _content(body.prompt or "", body.images, "images")
        prompt = Conversation([*messages, {"role": "user", "content": content}], variables=_variables(body))
    return Request(name_of(body), [prompt], options_of(body))


def name_of(body: given.ModelBody) -> str:
    """The name of the model, by the new key or the old one."""
    name = body.model or body.name
    if not name:
        raise InvalidRequestError("model is required", param="model")
    return name.removesuffix(":latest")


def options_of(body: given.GenerationBody) -> AnswerOptions:
    options, wanted = body.options or given.Options(), body.format
    most = options.num_predict
    response_format: AnswerFormat | None = None
    if wanted:
        response_format = (
            object_format("format") if isinstance(wanted, str) else schema_format(wanted, "format")
        )
    return AnswerOptions(
        max_tokens=None if most is None or most < 0 else most,
        stop=options.stop,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        penalty_window=options.repeat_last_n,
        seed=options.seed,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        response_format=response_format,
    )


def _message(message: given.Message, where: str) -> dict[str, Any]:
    content = _content(message.content or "", message.images, where)
    said: dict[str, Any] = {"role": message.role, "content": content}
    if message.thinking is not None:
        said["reasoning_content"] = message.thinking
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id or f"{place:09}",
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            for place, call in enumerate(message.tool_calls)
        ]
    if message.tool_name is not None:
        said["name"] = message.tool_name
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    return said


def _content(text: str, images: Sequence[str] | None, where: str) -> str | list[dict[str, Any]]:
    if not images:
        return text
    pictures = [{"type": "image_url", "image_url": {"url": _data_url(image, where)}} for image in images]
    return [*pictures, {"type": "text", "text": text}]


def _data_url(image: str, where: str) -> str:
    """A picture in base64 as an address; the bytes tell its kind."""
    try:
        begins = b64decode(image[:16], validate=True)
    except ValueError:  # other letters, or not ASCII
        raise InvalidRequestError(f"{where}: an image must be base64", param=where) from None
    kind = next((kind for mark, kind in _KINDS.items() if begins.startswith(mark)), "png")
    return f"data:image/{kind};base64,{image}"


def _variables(body: given.GenerationBody) -> dict[str, Any]:
    think = body.think
    effort = think if isinstance(think, str) else None
    return reasoning_variables(on=None if think is None else bool(think), effort=effort)
