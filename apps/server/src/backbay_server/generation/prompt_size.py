"""The size of a request, counted before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from backbay_engine import LLM

from ..errors import ContextLengthError, InvalidRequestError, RequestTooLargeError
from .requests import Conversation, InfillGap, Prompt

MOST_MEDIA: Final = 64  # pictures, and sounds, of one request
MEDIA: Final = {"pictures": ("image", "image_url"), "sounds": ("input_audio", "audio_url")}
"""The types of parts of messages."""
LEAST: Final = 1 << 20  # letters that any request may have
FOR_EACH_TOKEN: Final = 32  # letters, more than a token of any text has in the mean
COUNTED: Final = 1 << 12  # messages, and parts of them, that are counted whatever the context is
LONG: Final = 1 << 16  # letters; to cut more into tokens takes a tenth of a second or more


def count_letters(given: Any, most: int) -> int:
    """The letters of all texts in a value, each value being one letter at least; the count ends beyond `most`."""
    count, values = 0, [given]
    while values and count <= most:
        value = values.pop()
        if isinstance(value, str):
            count += len(value) or 1
        elif isinstance(value, dict):
            count += sum(map(len, value)) or 1
            values += value.values()
        elif isinstance(value, list | tuple):
            count += 0 if value else 1
            values += value[: most - count + 1]
        else:
            count += 1
    return count


def is_long(*prompts: Prompt) -> bool:
    """Whether prompts have so much text that it takes long to make them."""
    return count_letters([_texts(each, LONG + 1) for each in prompts], LONG) > LONG


def require_room(llm: LLM, *prompts: Prompt, parts: int = 0) -> None:
    """An error for clients if one of these prompts is too large for any answer of the model.

    A conversation may have as many parts as the context has tokens, or `parts`.
    What no context can hold is refused before it is rendered and cut into tokens, which takes time and memory.
    """
    for each in prompts:
        if isinstance(each, Conversation):
            _require_few_parts(llm, each, max(parts, llm.context))
        require_short(llm, _texts(each))


def require_short(llm: LLM, *given: Any) -> None:
    """RequestTooLargeError if the texts in these values are too long for any answer of the model."""
    most = max(LEAST, FOR_EACH_TOKEN * llm.context)
    if count_letters(given, most) > most:
        raise RequestTooLargeError(
            f"the request has more than {most} letters of text, the most that are taken"
        )


def _texts(prompt: Prompt, most: int | None = None) -> Any:
    """What a prompt says: all of it, or what the first `most` messages say, each of which is a letter or more."""
    if isinstance(prompt, Conversation):
        said = [*map(_without_media, prompt.messages[:most])]
        return [said, prompt.tools.definitions, prompt.variables]
    return [prompt.before, prompt.after, prompt.others] if isinstance(prompt, InfillGap) else prompt


def _without_media(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kinds = {"image_url", *MEDIA["sounds"]}  # an "image" is short: bytes
    return {**message, "content": [part for part in content if part["type"] not in kinds]}


def _require_few_parts(llm: LLM, asked: Conversation, most: int) -> None:
    """An error for clients if a conversation has more messages and parts of them than `most`, or many pictures or sounds."""
    contents = [message.get("content") for message in asked.messages]
    lists: list[Sequence[Any]] = [content for content in contents if isinstance(content, list)]
    if (count := len(contents) - len(lists) + sum(map(len, lists))) > most:
        raise ContextLengthError(
            f"This model's maximum context length is {llm.context} tokens. However, you sent {count} messages and parts "
            "of messages, each of which has a token or more. Please reduce the length of the messages.",
            n_prompt_tokens=count,
            n_ctx=llm.context,
        )
    for noun, kinds in MEDIA.items():
        if (count := sum(part["type"] in kinds for content in lists for part in content)) > MOST_MEDIA:
            raise InvalidRequestError(f"the conversation has {count} {noun}, at most {MOST_MEDIA} are taken")
