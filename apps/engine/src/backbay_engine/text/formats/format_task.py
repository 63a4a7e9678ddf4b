"""The task of the process that tries response formats, before this process compiles them for its vocabulary.

Some formats of a few kB take minutes and gigabytes, within one call that nothing can interrupt. It imports nothing
but llguidance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

NO_ANSWER: Final = "no text can be an answer"


def task(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    vocabulary: LLTokenizer | None = None

    def answer(request: dict[str, Any]) -> dict[str, str]:
        nonlocal vocabulary
        if vocabulary is None:
            vocabulary = _bytes_alone()
        error = _error(vocabulary, request["grammar"], names_tokens=request["names_tokens"])
        return {"right": "yes"} if error is None else {"error": error}

    return answer


def format_fault(matcher: LLMatcher) -> str:
    """What is wrong, without the names that llguidance has for it."""
    error = matcher.get_error()
    return NO_ANSWER if error.startswith("NoExtension") else error


def _error(vocabulary: LLTokenizer, grammar: str, *, names_tokens: bool) -> str | None:
    """Why no answer can be as wanted, if so."""
    from llguidance import LLMatcher, LLParserLimits

    if names_tokens:  # of the vocabulary, perhaps
        failed, messages = LLMatcher.validate_grammar_with_warnings(grammar)
        return str(messages[0]) if failed else None
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if matcher.is_error():
        return format_fault(matcher)
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        return format_fault(matcher)
    return None if any(mask) else NO_ANSWER


def _bytes_alone() -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    class Bytes:
        bos_token_id = None
        eos_token_id = 256
        special_token_ids = (256,)
        tokens: Final = [*(bytes((byte,)) for byte in range(256)), b"<end>"]

        def __call__(self, text: str) -> Sequence[int]:
            return list(text.encode())

    return LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=[256])
