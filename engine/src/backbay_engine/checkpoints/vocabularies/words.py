"""WordPiece: the vocabularies of BERT."""

from __future__ import annotations

from typing import Any

from ...text.token_kinds import TokenKind
from .tokens import Source, read_tokens, read_vocabulary


def keys(source: Source) -> dict[str, Any]:
    prefix = source.model.get("continuing_subword_prefix", "##")
    if not isinstance(prefix, str) or not prefix:
        raise source.refuse("a text before the rest of words", repr(prefix)[:100])
    tokens = read_tokens(source, read_vocabulary(source))
    tokens.texts = [
        text if kind in (TokenKind.CONTROL, TokenKind.UNUSED) else _spelled(text, prefix)
        for text, kind in zip(tokens.texts, tokens.types, strict=True)
    ]
    return {**tokens.keys("bert", "default"), **_normalizer(source)}


def _spelled(text: str, prefix: str) -> str:
    """A word begins with a mark, where the files of BERT mark the rest of words."""
    return text.removeprefix(prefix) if text.startswith(prefix) else "\u2581" + text


def _normalizer(source: Source) -> dict[str, Any]:
    steps = source.steps("normalizer")
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = bert.get("lowercase", not steps) is True or any(
        step.get("type") == "Lowercase" for step in steps
    )
    strip = bert.get("strip_accents")
    strips = (lowercase if strip is None else strip is True) or any(
        step.get("type") == "StripAccents" for step in steps
    )
    return {
        "tokenizer.ggml.normalizer.lowercase": lowercase,
        "tokenizer.ggml.normalizer.strip_accents": strips,
    }
