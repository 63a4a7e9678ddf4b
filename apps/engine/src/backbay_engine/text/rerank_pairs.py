"""Pairs of query and text, as models that rank texts take them."""

from __future__ import annotations

import re
from typing import Final

from .tokenizers import Tokenizer

TEMPLATE: Final = "rerank"
ROBERTA_END: Final = "</s>"  # comes twice between the texts of a pair
_PLACES = re.compile(r"\{(query|document)\}")


def pair_ids(tokenizer: Tokenizer, query: str, text: str) -> list[int]:
    """The token ids: by the file's template for pairs, or as BERT or RoBERTa joins two texts."""
    template = tokenizer.chat_templates.get(TEMPLATE)
    if template is not None:
        both = {"query": query, "document": text}
        return tokenizer.encode(_PLACES.sub(lambda place: both[place[1]], template), add_special=False)
    first, second = (tokenizer.encode(each, parse_special=False) for each in (query, text))
    if second and second[0] == tokenizer.bos:
        second = second[1:]
    twice = bool(first) and tokenizer.token_text(first[-1]) == ROBERTA_END
    return [*first, *(first[-1:] if twice else ()), *second]
