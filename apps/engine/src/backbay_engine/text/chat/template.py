"""Chat templates: from conversations to prompts, by the jinja2 program in a model file.

The program is not trusted. It runs in jinja2's immutable sandbox, in a process with limited time and memory: a
sandbox alone does not limit the memory of `'a' * 10**10`, or the time of a sort.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from ...errors import TemplateError
from ..bounded_process import BoundedProcess, BoundedProcessError
from ..tokenizers.tokenizer import Tokenizer
from . import template_rendering


@final
@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """Limits for rendering one conversation."""

    seconds: float = 2.0  # of processor time
    memory: int = 512 << 20  # bytes of the whole process
    output: int = 16 << 20  # characters


DEFAULT_LIMITS = TemplateLimits()
_REASONING = ("reasoning_content", "thinking", "reasoning")


@final
class ChatTemplate:
    """A template, and the process that runs it, started at the first `render`. Threads may share one."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        limits: TemplateLimits = DEFAULT_LIMITS,
    ) -> None:
        self.source, self.limits = source, limits
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._process = BoundedProcess(
            Path(template_rendering.__file__),
            ("jinja2", "markupsafe"),
            {"source": source, "output": limits.output},
            seconds=limits.seconds,
            memory=limits.memory,
        )

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation. It contains the special tokens: encode it with add_special=False.

        A message's reasoning may be called reasoning_content, reasoning or thinking. All arguments must be JSON:
        strings, numbers, booleans, None, lists, and dicts with strings as keys.
        """
        laid_out = [_with_reasoning(message) for message in messages]
        given = {"documents": None, **self._tokens, **variables, "messages": laid_out, "tools": tools}
        request = _to_json({**given, "add_generation_prompt": add_generation_prompt})
        try:
            answer = self._process.ask(request)
        except BoundedProcessError as error:
            raise TemplateError(f"chat template: {error}") from error
        if "text" not in answer:
            raise TemplateError(f"chat template: {answer['error']}")
        return answer["text"]

    def close(self) -> None:
        """End the process; the next `render` starts another."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chat_template_from_gguf(tokenizer: Tokenizer, name: str | None = None) -> ChatTemplate | None:
    """The default template of a model file, or the template of a name; None if the file has no default."""
    source = tokenizer.chat_template if name is None else tokenizer.chat_templates.get(name)
    if source is None and name is not None:
        known = ", ".join(map(repr, tokenizer.chat_templates)) or "none"
        raise TemplateError(f"the model has no chat template {name!r}; by name it has: {known}")
    if source is None:
        return None
    bos, eos = ("" if id is None else tokenizer.token_text(id) for id in (tokenizer.bos, tokenizer.eos))
    return ChatTemplate(source, bos_token=bos, eos_token=eos)


def _with_reasoning(message: object) -> object:
    """The message with its reasoning under both names that templates read, as in transformers."""
    if not isinstance(message, Mapping):
        return message
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _to_json(value: object) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TemplateError(f"the arguments of a chat template must be JSON: {error}") from None
