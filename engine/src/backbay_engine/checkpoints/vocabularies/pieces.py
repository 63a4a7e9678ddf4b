"""Vocabularies whose tokens have probabilities."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import numpy as np

from ...text.token_kinds import TokenKind
from .byte_pairs import adds_space
from .tokens import Source, read_tokens


def unigram_keys(source: Source) -> dict[str, Any]:
    found = source.model["vocab"]
    if not isinstance(found, list) or not all(_is_piece(piece) for piece in found):
        raise source.refuse("a list of texts with scores as vocab", type(found).__name__)
    unknown = source.model.get("unk_id")
    name = found[unknown][0] if isinstance(unknown, int) and 0 <= unknown < len(found) else None
    vocabulary = {piece[0]: id for id, piece in enumerate(found)}
    if len(vocabulary) != len(found):
        raise source.refuse("a text of its own for each token", "a text twice")
    tokens = read_tokens(source, vocabulary, name)
    for id, (_, score) in enumerate(found):
        if tokens.types[id] in (TokenKind.NORMAL, TokenKind.UNKNOWN, TokenKind.CONTROL):
            tokens.scores[id] = float(score)
    return {
        **tokens.keys("t5", "default"),
        "tokenizer.ggml.scores": np.array(tokens.scores, np.float32),
        "tokenizer.ggml.add_space_prefix": adds_space(source),
        "tokenizer.ggml.remove_extra_whitespaces": _merges_spaces(source),
        **_charsmap(source),
    }


def _merges_spaces(source: Source) -> bool:
    """Whether several spaces count as one."""
    steps = source.steps("normalizer")
    return any(step.get("type") == "Replace" and "{2,}" in str(step.get("pattern")) for step in steps) or any(
        step.get("type") == "WhitespaceSplit" for step in source.steps("pre_tokenizer")
    )


def _charsmap(source: Source) -> dict[str, Any]:
    step = next((step for step in source.steps("normalizer") if step.get("type") == "Precompiled"), None)
    packed = None if step is None else step.get("precompiled_charsmap")
    if not packed:
        return {}
    try:
        data = base64.b64decode(packed, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise source.refuse("a precompiled_charsmap in base64", str(error)) from error
    return {"tokenizer.ggml.precompiled_charsmap": np.frombuffer(data, np.int8)}


def _is_piece(piece: object) -> bool:
    return (
        isinstance(piece, list)
        and len(piece) == 2
        and isinstance(piece[0], str)
        and isinstance(piece[1], int | float)
        and np.isfinite(np.float32(piece[1]))
    )
