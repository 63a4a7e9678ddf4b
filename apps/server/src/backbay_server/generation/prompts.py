"""Prompts: what a client gave becomes what the engine takes, and what reads its answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, TypeAlias

import msgspec

from backbay_engine import LLM, ChatRequest, PlainReader

from ..errors import InvalidRequestError
from .given_rows import with_rows
from .requests import Conversation, InfillGap, Prompt

EnginePrompt: TypeAlias = Any  # token ids, or the engine's parts of a prompt with pictures
LETTERS, TOKENS = 256, 64  # of a plain prompt that name its session; a shorter one has little to find again


def require_text(llm: LLM) -> None:
    """InvalidRequestError if the model takes no text."""
    if llm.transcribes:
        raise InvalidRequestError(
            "the model writes transcripts of sounds, and nothing else: send them to /v1/audio/transcriptions",
            param="model",
        )


def prepare_prompt(llm: LLM, asked: Prompt, wanted: Mapping[str, Any] | None = None) -> ChatRequest:
    """What a client gave, for the engine, and the reader of its answers."""
    if not isinstance(asked, Conversation):
        prompt = gap_prompt(llm, asked) if isinstance(asked, InfillGap) else llm.encode(asked)
        return ChatRequest(prompt, {"response_format": wanted, "shown": ()}, PlainReader)
    tools, messages = asked.tools, asked.messages
    if "developer" not in llm.template.source:  # they speak as the system, unless the template knows them
        messages = [{**each, "role": "system"} if each["role"] == "developer" else each for each in messages]
    messages = [with_rows(each) for each in messages]
    return llm.prepare_chat(messages, tools=tools, response_format=wanted, variables=asked.variables)


def session_name(asked: Prompt) -> str:
    """A name that the requests of one conversation share, so that they find the cache of its beginning.

    Messages up to the first one of the user make it; of a plain prompt, its beginning.
    """
    if isinstance(asked, Conversation):
        before = [*takewhile(lambda message: message["role"] != "user", asked.messages)]
        said = msgspec.json.encode(asked.messages[: len(before) + 1], enc_hook=repr)
    elif isinstance(asked, str | InfillGap):
        said = (asked if isinstance(asked, str) else asked.before)[:LETTERS].encode("utf-8", "replace")
    else:
        said = msgspec.json.encode(list(asked[:TOKENS]))
    return hashlib.blake2b(said, digest_size=12).hexdigest()


# -- filling in the middle -------------------------------------------------------------------------------

PROJECT: Final = "myproject\n"  # llama.cpp's server names project and file so, too
FILE: Final = "filename\n"
BREAK: Final = "\n\n--- snippet ---\n\n"  # between files, where the model has no token for it
PARTS: Final = ("fim_pre", "fim_suf", "fim_mid")
FOR_AFTER: Final = 4  # a quarter of the room is for the text after the gap


def gap_prompt(llm: LLM, gap: InfillGap) -> list[int]:
    """The prompt, in the order of the models' makers: other files, the text before, the text after.

    Where a prompt is too long, the room goes to what is next to the gap: first the other files leave, the oldest first.
    """
    marks = llm.tokenizer.special_ids
    marked = all(part in marks for part in PARTS)
    if not (marked or gap.plain):
        raise InvalidRequestError("the model has no tokens to fill in the middle")
    before, after = _ids(llm, gap.before), _ids(llm, gap.after)
    room = max(2, 3 * llm.context // 4)  # what is left is the answer's
    few = min(len(after), max(room // FOR_AFTER, room - len(before)))
    after = after[:few]
    before = before[max(0, len(before) - (room - few)) :]
    others = _others(llm, gap)
    others = others[max(0, len(others) - (room - len(before) - len(after))) :]
    if not marked:  # what comes later is shown first, and the model goes on with the text before the gap
        shown = [*_ids(llm, BREAK), *after] if after else []
        rest = [*others, *shown]
        return [*llm.tokenizer.around[0], *rest, *(_ids(llm, BREAK) if rest else ()), *before]
    pre, suf, mid = (marks[part] for part in PARTS)
    return [*llm.tokenizer.around[0], *others, pre, *before, suf, *after, mid]


def _others(llm: LLM, gap: InfillGap) -> list[int]:
    """The texts of other files, in front of the name of this one."""
    marks = llm.tokenizer.special_ids
    found = [marks["fim_rep"], *_ids(llm, PROJECT)] if "fim_rep" in marks else []
    for name, text in gap.others:
        found += [marks["fim_sep"], *_ids(llm, f"{name}\n")] if "fim_sep" in marks else _ids(llm, BREAK)
        found += _ids(llm, text)
    return [*found, marks["fim_sep"], *_ids(llm, FILE)] if "fim_sep" in marks else found


def _ids(llm: LLM, text: str) -> list[int]:
    return llm.tokenizer.encode(text, add_special=False, parse_special=False)
