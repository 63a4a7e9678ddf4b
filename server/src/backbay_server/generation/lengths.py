"""The length of texts: what no context can hold is refused before it is cut into tokens, which takes much memory."""

from __future__ import annotations

from typing import Any, Final

from backbay_engine import LLM

from ..errors import TooLargeError

LEAST: Final = 1 << 20  # letters that any request may have
FOR_EACH_TOKEN: Final = 32  # letters, more than a token of any text has in the mean


def require_fitting(llm: LLM, *given: Any) -> None:
    """TooLargeError if the texts in these values are too long for any answer of the model."""
    most, count, values = max(LEAST, FOR_EACH_TOKEN * llm.context), 0, [*given]
    while values:
        value = values.pop()
        if isinstance(value, str):
            count += len(value)
        elif isinstance(value, dict):
            values += [each for key, each in value.items() if key != "image_url"]
        elif isinstance(value, list | tuple):
            values += value
    if count > most:
        raise TooLargeError(f"the request has {count} letters of text, at most {most} are taken")
