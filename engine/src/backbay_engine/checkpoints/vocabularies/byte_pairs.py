"""Byte-pair encoding: in GPT-2's alphabet of bytes, or in pieces as SentencePiece writes them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ...text.token_kinds import TokenKind
from .patterns import pre_tokenizer
from .tokens import Source, Tokens, read_tokens, read_vocabulary

_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_SPACE, _ENCODED_SPACE = " ", "\u0120"
_SHOWN = {  # of Gemma 4: parsers of its answers need to see them
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
}  # fmt: skip


def keys(source: Source) -> dict[str, Any]:
    merges = _merges(source)
    if source.architecture == "gemma4":
        return _gemma4(source, merges)
    if _in_pieces(source):
        return _pieces(source, merges)
    tokens = read_tokens(source, read_vocabulary(source))
    return {
        **tokens.keys("gpt2", pre_tokenizer(source)),
        "tokenizer.ggml.merges": [_line(pair) for pair in merges],
    }


def _in_pieces(source: Source) -> bool:
    """Whether spaces are spelled as in SentencePiece, and bytes have tokens of their own."""
    byte_level = any(
        step.get("type") == "ByteLevel"
        for name in ("pre_tokenizer", "decoder")
        for step in source.steps(name)
    )
    return source.model.get("byte_fallback") is True or not byte_level


def _pieces(source: Source, merges: list[tuple[str, str]]) -> dict[str, Any]:
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
        "tokenizer.ggml.scores": _scores(tokens),
        "tokenizer.ggml.add_space_prefix": adds_space(source),
    }


def _gemma4(source: Source, merges: list[tuple[str, str]]) -> dict[str, Any]:
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
        "tokenizer.ggml.scores": _scores(tokens),
        "tokenizer.ggml.merges": [_line(pair) for pair in merges],
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }


def adds_space(source: Source) -> bool:
    """Whether a text gets a space before its first word."""
    for step in (*source.steps("normalizer"), *source.steps("pre_tokenizer")):
        if step.get("type") == "Prepend" or (
            step.get("type") == "Metaspace"
            and step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            != "never"
        ):
            return True
    return False


def _scores(tokens: Tokens) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.array(tokens.scores, np.float32)


def _merges(source: Source) -> list[tuple[str, str]]:
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
