"""Prompts for filling in the middle."""

from __future__ import annotations

from typing import Final

from backbay_engine import LLM

from ..errors import InvalidRequestError
from .lengths import require_fitting
from .requests import Gap

PROJECT: Final = "myproject\n"  # llama.cpp's server names project and file so, too
FILE: Final = "filename\n"
BREAK: Final = "\n\n--- snippet ---\n\n"  # between files, where the model has no token for it
PARTS: Final = ("fim_pre", "fim_suf", "fim_mid")
FOR_AFTER: Final = 4  # a quarter of the room is for the text after the gap


def gap_prompt(llm: LLM, gap: Gap) -> list[int]:
    """The prompt, in the order of the models' makers: other files, the text before, the text after.

    Where a prompt is too long, the room goes to what is next to the gap: first the other files leave, the oldest first.
    """
    require_fitting(llm, gap.before, gap.after, *(text for _, text in gap.others))
    marks = llm.tokenizer.special_ids
    if any(part not in marks for part in PARTS):
        raise InvalidRequestError("the model has no tokens to fill in the middle")
    before, after = _ids(llm, gap.before), _ids(llm, gap.after)
    room = max(2, 3 * llm.context // 4)  # what is left is the answer's
    few = min(len(after), max(room // FOR_AFTER, room - len(before)))
    after = after[:few]
    before = before[max(0, len(before) - (room - few)) :]
    others = _others(llm, gap)
    others = others[max(0, len(others) - (room - len(before) - len(after))) :]
    begin = [llm.tokenizer.bos] if llm.tokenizer.add_bos and llm.tokenizer.bos is not None else []
    pre, suf, mid = (marks[part] for part in PARTS)
    return [*begin, *others, pre, *before, suf, *after, mid]


def _others(llm: LLM, gap: Gap) -> list[int]:
    """The texts of other files, in front of the name of this one."""
    marks = llm.tokenizer.special_ids
    found = [marks["fim_rep"], *_ids(llm, PROJECT)] if "fim_rep" in marks else []
    for name, text in gap.others:
        found += [marks["fim_sep"], *_ids(llm, f"{name}\n")] if "fim_sep" in marks else _ids(llm, BREAK)
        found += _ids(llm, text)
    return [*found, marks["fim_sep"], *_ids(llm, FILE)] if "fim_sep" in marks else found


def _ids(llm: LLM, text: str) -> list[int]:
    return llm.tokenizer.encode(text, add_special=False, parse_special=False)
