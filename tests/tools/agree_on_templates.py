"""Compares rendered chat templates with transformers: every template of a folder, on many conversations.

    python tests/tools/agree_on_templates.py FOLDER

Needs transformers. llama-cpp-python's source distribution has the templates of about seventy models, in
vendor/llama.cpp/models/templates. Both sides must refuse the same conversations.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from backbay_engine.errors import TemplateError
from backbay_engine.text.chat import ChatTemplate

WEATHER = {
    "name": "get_weather",
    "description": 'Tells the <weather> of a "city" & more \u00e9',
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]}},
        "required": ["city"],
    },
}
CALL = {
    "id": "abc123def",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Z\u00fcrich"}},
}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "abc123def", "content": '{"t": 20}'}
USER = {"role": "user", "content": " Hi <b> & 'you' \u4f60\u597d "}
SYSTEM = {"role": "system", "content": "Be kind."}
HELLO = {"role": "assistant", "content": "Hello!\n"}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one message": [USER],
    "with a system message": [SYSTEM, USER],
    "several turns": [SYSTEM, USER, HELLO, USER],
    "thoughts in the text": [USER, {**HELLO, "content": "<think>\nhm\n</think>\n\nHello!"}, USER],
    "thoughts apart": [USER, {**HELLO, "reasoning_content": "hm"}, USER],
    "thoughts before a call": [USER, {**CALLS, "reasoning": "let me see"}, RESULT],
    "a call": [USER, {**CALLS, "content": ""}, RESULT],
    "after a call": [SYSTEM, USER, CALLS, RESULT, HELLO, USER],
    "text in parts": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}
    ],
    "a developer": [{**SYSTEM, "role": "developer"}, USER],
    "two answers": [HELLO, HELLO],
    "nothing": [],
}
VARIABLES: list[dict[str, Any]] = [
    {},
    {"tools": [{"type": "function", "function": WEATHER}]},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"reasoning_effort": "high"},
]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def theirs(source: str, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str | None:
    """The text of transformers; None if it refuses."""
    try:
        rendered, _ = render_jinja_template(
            [copy.deepcopy(messages)], chat_template=source, **TOKENS, **variables
        )
    except Exception:  # a template may raise anything
        return None
    text: str = rendered[0]
    return text


def ours(template: ChatTemplate, messages: list[dict[str, Any]], variables: dict[str, Any]) -> str | None:
    try:
        return template.render(messages, **variables)
    except TemplateError:
        return None


def compare(path: Path) -> Iterator[tuple[str, str]]:
    """The result for each conversation and set of variables, with their names."""
    source = path.read_text(encoding="utf-8")
    with ChatTemplate(source, **TOKENS) as template:
        for (name, messages), given, prompt in product(CONVERSATIONS.items(), VARIABLES, (True, False)):
            variables = {**given, "add_generation_prompt": prompt}
            expected, found = theirs(source, messages, variables), ours(template, messages, variables)
            same = "same" if found is not None else "refused by both"
            yield same if found == expected else "differ", f"{name}, {', '.join(variables)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    counts = Counter[str]()
    for path in sorted(parser.parse_args().folder.glob("*.jinja")):
        for result, what in compare(path):
            counts[result] += 1
            if result == "differ":
                print(f"{path.name}: {what}")
    print(", ".join(f"{count} {result}" for result, count in counts.items()) or "no templates")
    return 0 if counts["same"] and not counts["differ"] else 1


if __name__ == "__main__":
    sys.exit(main())
