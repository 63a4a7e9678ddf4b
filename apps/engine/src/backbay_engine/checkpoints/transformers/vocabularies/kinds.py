"""The kinds of vocabularies: byte-pair encoding, tokens with probabilities (unigram), and WordPiece."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import numpy as np

from ....text.token_kinds import TokenKind
from .patterns import pre_tokenizer
from .tokens import TokenizerFile, read_tokens, read_vocabulary

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE, _ENCODED_SPACE = " ", "\u0120"
_SHOWN = {  # of Gemma 4: parsers of its answers need to see them
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
}  # fmt: skip


def byte_pair_keys(source: TokenizerFile) -> dict[str, Any]:
    merges = _merges(source)
    if source.architecture == "gemma4":
        return _gemma4(source, merges)
    spelled = [*source.steps("pre_tokenizer"), *source.steps("decoder")]
    byte_level = any(step.get("type") == "ByteLevel" for step in spelled)
    if source.model.get("byte_fallback") is True or not byte_level:
        return _pieces(source, merges)
    tokens = read_tokens(source, read_vocabulary(source))
    return {
        **tokens.keys("gpt2", pre_tokenizer(source)),
        "tokenizer.ggml.merges": [_line(pair) for pair in merges],
    }


def _pieces(source: TokenizerFile, merges: list[tuple[str, str]]) -> dict[str, Any]:
    """A vocabulary of SentencePiece: a token's score is its rank among the merges."""
    unknown = source.model.get("unk_token")
    tokens = read_tokens(source, read_vocabulary(source), unknown if isinstance(unknown, str) else "<unk>")
    ranks: dict[str, int] = {}
    for rank, (first, second) in enumerate(merges):
        ranks.setdefault(first + second, rank)
    for id, text in enumerate(tokens.texts):
        if tokens.types[id] == TokenKind.NORMAL:
            if _BYTE.fullmatch(text):
                tokens.types[id] = TokenKind.BYTE
            tokens.scores[id] = -float(ranks.get(text, len(merges)))
    return {
        **tokens.keys("llama", "default"),
        "tokenizer.ggml.scores": np.array(tokens.scores, np.float32),
        "tokenizer.ggml.add_space_prefix": adds_space(source),
    }


def _gemma4(source: TokenizerFile, merges: list[tuple[str, str]]) -> dict[str, Any]:
    tokens = read_tokens(source, read_vocabulary(source), "<unk>")
    for id, text in enumerate(tokens.texts):
        if text in _SHOWN:
            tokens.types[id] = TokenKind.USER_DEFINED
        elif tokens.types[id] == TokenKind.NORMAL and _BYTE.fullmatch(text):
            tokens.types[id] = TokenKind.BYTE
    found = tokens.keys("gemma4", "default")
    del found["tokenizer.ggml.pre"]
    return {
        **found,
        "tokenizer.ggml.scores": np.array(tokens.scores, np.float32),
        "tokenizer.ggml.merges": [_line(pair) for pair in merges],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }


def adds_space(source: TokenizerFile) -> bool:
    """Whether a text gets a space before its first word."""
    for step in (*source.steps("normalizer"), *source.steps("pre_tokenizer")):
        default = "always" if step.get("add_prefix_space", True) else "never"
        metaspace = step.get("type") == "Metaspace" and step.get("prepend_scheme", default) != "never"
        if metaspace or step.get("type") == "Prepend":
            return True
    return False


def _merges(source: TokenizerFile) -> list[tuple[str, str]]:
    found = source.model.get("merges") or []
    if not isinstance(found, list):
        raise source.refuse("a list of merges", type(found).__name__)
    pairs = []
    for merge in found:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            raise source.refuse("merges of two texts", repr(merge)[:200])
        pairs.append((parts[0], parts[1]))
    return pairs


def _line(pair: tuple[str, str]) -> str:
    """A merge as a line, whose parts hold no space."""
    return " ".join(part.replace(_SPACE, _ENCODED_SPACE) for part in pair)


# -- unigram ---------------------------------------------------------------------------------------------


def unigram_keys(source: TokenizerFile) -> dict[str, Any]:
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
    merges_spaces = any(
        step.get("type") == "Replace" and "{2,}" in str(step.get("pattern"))
        for step in source.steps("normalizer")
    ) or any(step.get("type") == "WhitespaceSplit" for step in source.steps("pre_tokenizer"))
    return {
        **tokens.keys("t5", "default"),
        "tokenizer.ggml.scores": np.array(tokens.scores, np.float32),
        "tokenizer.ggml.add_space_prefix": adds_space(source),
        "tokenizer.ggml.remove_extra_whitespaces": merges_spaces,
        **_charsmap(source),
    }


def _charsmap(source: TokenizerFile) -> dict[str, Any]:
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
    match piece:
        case [str(), int() | float() as score]:
            return bool(np.isfinite(np.float32(score)))
    return False


# -- WordPiece -------------------------------------------------------------------------------------------


def word_piece_keys(source: TokenizerFile) -> dict[str, Any]:
    prefix = source.model.get("continuing_subword_prefix", "##")
    if not isinstance(prefix, str) or not prefix:
        raise source.refuse("a text before the rest of words", repr(prefix)[:100])
    tokens = read_tokens(source, read_vocabulary(source))
    for id, text in enumerate(tokens.texts):
        if tokens.types[id] not in (TokenKind.CONTROL, TokenKind.UNUSED):
            # a word begins with a mark, where the files of BERT mark the rest of words
            tokens.texts[id] = text.removeprefix(prefix) if text.startswith(prefix) else "\u2581" + text
    return {**tokens.keys("bert", "default"), **_normalizer(source)}


def _normalizer(source: TokenizerFile) -> dict[str, Any]:
    steps = source.steps("normalizer")
    bert = next((step for step in steps if step.get("type") == "BertNormalizer"), {})
    lowercase = any(step.get("type") == "Lowercase" for step in steps)
    lowercase = lowercase or bert.get("lowercase", not steps) is True
    strip = bert.get("strip_accents")
    strips = any(step.get("type") == "StripAccents" for step in steps)
    strips = strips or (lowercase if strip is None else strip is True)
    return {
        "tokenizer.ggml.normalizer.lowercase": lowercase,
        "tokenizer.ggml.normalizer.strip_accents": strips,
    }
