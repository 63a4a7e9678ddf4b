"""Response formats, compiled by llguidance for the vocabulary of one model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final, final

from backbay import OptionError

from ...errors import ResponseFormatError
from ..bounded_process import BoundedProcess, BoundedProcessError
from ..sampling.constraint import Constraint
from ..tokenizers import Tokenizer
from . import format_task
from .format_rule import SPACE, as_lark, choice_pattern
from .format_task import NO_ANSWER, format_fault
from .response_format import ResponseFormat

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


@final
class ConstraintMaker:
    """Makes constraints of response formats. Threads may share one; the vocabulary is read at the first format."""

    tried = False  # whether formats have been tried by whoever sends them, who is another process

    def __init__(self, tokenizer: Tokenizer | None, size: int) -> None:
        self._tokenizer, self._size = tokenizer, size
        self._vocabulary: LLTokenizer | None = None
        self._lock = Lock()

    def constraint(self, wanted: ResponseFormat) -> Constraint:
        """The constraint of one answer; ResponseFormatError if no answer can be as wanted."""
        if self._tokenizer is None:
            raise ResponseFormatError("the file has no vocabulary, so an answer has no format")
        grammar = _compiled(wanted) if self.tried else check_format(wanted)
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _Vocabulary(self._tokenizer, self._size).wrapped
            assert self._vocabulary is not None
        return GrammarConstraint(_matcher(self._vocabulary, grammar), ends=bool(self._tokenizer.end_ids))


@final
class GrammarConstraint:
    """The constraint of one answer. Its first mask is computed at once: an impossible format is an error from the start."""

    def __init__(self, matcher: LLMatcher, *, ends: bool) -> None:
        self._matcher, self._ends = matcher, ends  # whether the model has a token that ends an answer
        self._first: bytes | None = self._computed()
        if not any(self._first):
            raise _refused(NO_ANSWER)

    def mask(self) -> bytes:
        mask, self._first = self._first, None
        if not self._ends and self._matcher.is_stopped():
            return b""
        return self._computed() if mask is None else mask

    def accept(self, token: int) -> None:
        self._first = None
        if not self._matcher.consume_token(token):
            raise _refused(format_fault(self._matcher) or f"token {token} is not allowed here")

    def _computed(self) -> bytes:
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise _refused(format_fault(self._matcher))
        return mask


@final
class _Vocabulary:
    """The tokens of a model as llguidance takes them; a model without an end gets one that it can never choose."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        special = {id for id in (*tokenizer.control_ids, *tokenizer.end_ids) if id < size}
        text, data = tokenizer.token_text, tokenizer.token_bytes
        self.tokens = [text(id).encode() if id in special else data(id) for id in range(size)]
        ends = [id for id in sorted(tokenizer.end_ids) if id < size]
        if not ends:
            self.tokens.append(b"<end>")
            special.add(size)
            ends = [size]
        self.special_token_ids = sorted(special)
        self.eos_token_id = self.special_token_ids[-1]
        self._encode = partial(tokenizer.encode, add_special=False, parse_special=False, continues=True)
        self.wrapped: LLTokenizer | None = None  # which asks for the tokens of texts before it is whole
        self.wrapped = LLTokenizer(TokenizerWrapper(self), n_vocab=len(self.tokens), eos_token=ends)

    def __call__(self, text: str) -> Sequence[int]:
        """The tokens of a text. Those that decode to another text, as tokenizers may change characters, are replaced."""
        ids = self._encode(text)
        if self.wrapped is None or b"".join(self.tokens[id] for id in ids) == text.encode():
            return ids
        return self.wrapped.greedy_tokenize(text)


def _matcher(vocabulary: LLTokenizer, grammar: str) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(verbose_errors=False)  # else errors show the parser's state, and the text so far
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise _refused(format_fault(matcher))
    return matcher


def check_format(wanted: ResponseFormat) -> str:
    """The format in llguidance's own form, at a bounded cost; ResponseFormatError if no answer can be as wanted."""
    grammar = _compiled(wanted)
    _try(grammar, names_tokens=wanted.kind == "grammar")
    return grammar


@lru_cache(maxsize=32)
def _try(grammar: str, *, names_tokens: bool) -> None:
    try:
        answer = _TRIALS.ask(json.dumps({"grammar": grammar, "names_tokens": names_tokens}).encode())
    except BoundedProcessError as error:
        raise _refused(f"compiling it failed: {error}") from error
    if "error" in answer:
        raise _refused(answer["error"])


_TRIALS: Final = BoundedProcess(Path(format_task.__file__), ("llguidance",), {}, seconds=2.0, memory=1 << 30)


def _compiled(wanted: ResponseFormat) -> str:
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise OptionError("response_format needs llguidance: pip install llguidance") from error
    text = as_lark(wanted.text) if wanted.kind == "grammar" else wanted.text
    try:
        match wanted.kind:
            case "schema":
                return LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": SPACE})
            case "regex":
                return LLMatcher.grammar_from_regex(text)
            case "choice":
                return LLMatcher.grammar_from_regex(choice_pattern(text))
        return LLMatcher.grammar_from_lark(text)
    except Exception as error:
        raise _refused(str(error)) from error


def _refused(told: str) -> ResponseFormatError:
    return ResponseFormatError(f"response_format: {told}", told)
