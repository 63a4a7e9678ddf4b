"""The tokens of prompts that have parts, for one model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from ..encoders.contract import EncoderFamily, MediaPlace, Modality, placeholder_id
from ..steps.tokens import Token, mark_visible_pictures
from ..text.tokenizers import Tokenizer
from .content_parts import Encoded, Media, modality_of
from .prompts import PlacedMedia, PromptParts, placeholder_tokens, prompt_tokens
from .rows import Rows


@final
class PromptTokenizer:
    """Makes tokens of texts, ids, and what stands between them.

    tokenizer  None: the file has no vocabulary
    families   those of the model's encoders
    """

    def __init__(self, tokenizer: Tokenizer | None, families: Sequence[EncoderFamily[Any]]) -> None:
        self._tokenizer, self._families = tokenizer, {each.modality: each for each in families}
        self._plain = placeholder_tokens([each.placeholder for each in families], tokenizer)

    def beside(self, encoded: Sequence[Encoded]) -> list[Encoded]:
        """The pictures and sounds of one prompt, as each family takes its own beside the others."""
        found: set[Modality] = {modality_of(each) for each in encoded if not isinstance(each, Rows)}
        return [
            each if isinstance(each, Rows) else self._families[modality_of(each)].beside(each, found)
            for each in encoded
        ]

    def tokens(self, parts: PromptParts, encoded: Sequence[Encoded]) -> list[Token]:
        """The tokens of a prompt, whose pictures and sounds are prepared, in their order."""
        left = iter(encoded)
        items = [self._placed(next(left)) if isinstance(item, Media) else item for item in parts.items]
        tokens = prompt_tokens(items, self._tokenizer, begins=parts.begins, plain=self._plain)
        crosses = any(family.crosses for family in self._families.values())
        return mark_visible_pictures(tokens) if crosses else tokens

    def _placed(self, given: Encoded) -> PlacedMedia:
        prepared = given.of if isinstance(given, Rows) else given
        if prepared is None:
            return PlacedMedia(given, self._text_place(given.tokens))
        family = self._families[modality_of(prepared)]  # as requests are checked
        if prepared is not given:
            family.check_prepared(prepared)
        return PlacedMedia(given, family.placed(prepared, self._tokenizer))

    def _text_place(self, count: int) -> MediaPlace:
        """A place of rows that are tokens of the text; their ids are read by nothing but penalties."""
        id = 0 if self._tokenizer is None else placeholder_id(self._tokenizer)
        return MediaPlace(np.full(count, id, np.int32), np.ones(count, np.bool_), advance=count)
