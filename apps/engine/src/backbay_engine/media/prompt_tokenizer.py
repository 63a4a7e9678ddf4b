"""The tokens of prompts that have parts, for one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ..encoders.contract import EncoderFamily, MediaPlace, placeholder_id
from ..steps.tokens import Token, mark_visible_pictures
from ..text.tokenizers import Tokenizer
from .content_parts import Encoded, Media
from .prompts import PlacedMedia, PromptParts, placeholder_tokens, prompt_tokens
from .rows import Rows


@final
class PromptTokenizer:
    """Makes tokens of texts, ids, and what stands between them.

    tokenizer  None: the file has no vocabulary
    family     that of the model's encoder; None: the model has none
    """

    def __init__(self, tokenizer: Tokenizer | None, family: EncoderFamily[Any] | None) -> None:
        self._tokenizer, self._family = tokenizer, family
        self._plain = frozenset() if family is None else placeholder_tokens(family.placeholder, tokenizer)

    def tokens(self, parts: PromptParts, encoded: Sequence[Encoded]) -> list[Token]:
        """The tokens of a prompt, whose pictures and sounds are prepared, in their order."""
        left = iter(encoded)
        items = [self._placed(next(left)) if isinstance(item, Media) else item for item in parts.items]
        tokens = prompt_tokens(items, self._tokenizer, begins=parts.begins, plain=self._plain)
        return tokens if self._family is None or not self._family.crosses else mark_visible_pictures(tokens)

    def _placed(self, given: Encoded) -> PlacedMedia:
        prepared = given.of if isinstance(given, Rows) else given
        if prepared is None:
            return PlacedMedia(given, self._text_place(given.tokens))
        assert self._family is not None  # as requests are checked
        if prepared is not given:
            self._family.check_prepared(prepared)
        return PlacedMedia(given, self._family.placed(prepared, self._tokenizer))

    def _text_place(self, count: int) -> MediaPlace:
        """A place of rows that are tokens of the text; their ids are read by nothing but penalties."""
        id = 0 if self._tokenizer is None else placeholder_id(self._tokenizer)
        return MediaPlace(np.full(count, id, np.int32), np.ones(count, np.bool_), advance=count)
