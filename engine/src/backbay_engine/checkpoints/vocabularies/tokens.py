"""The tokens of a tokenizer.json, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from backbay import ModelFileError

from ...text.token_kinds import TokenKind

MOST = 1 << 22


@dataclass(frozen=True)
class Source:
    """A tokenizer.json, its part `model`, tokenizer_config.json, and what the model says of the vocabulary."""

    path: Path
    found: dict[str, Any]
    model: dict[str, Any]
    settings: dict[str, Any]
    architecture: str
    count: int  # rows of the embedding

    def refuse(self, expected: str, found: object) -> ModelFileError:
        return ModelFileError(self.path, None, expected, found)

    def part(self, name: str) -> dict[str, Any]:
        """An object of the file; empty if it is not there."""
        found = self.found.get(name)
        return found if isinstance(found, dict) else {}

    def steps(self, name: str) -> list[dict[str, Any]]:
        """The steps of a part, in order, whether it is a sequence or one step."""
        return list(_steps(self.part(name), 8))

    def special(self, name: str) -> str | None:
        """The text of a special token in tokenizer_config.json."""
        entry = self.settings.get(f"{name}_token")
        entry = entry.get("content") if isinstance(entry, dict) else entry
        return entry if isinstance(entry, str) else None


def _steps(part: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    inner = next(
        (
            part[name]
            for name in ("pretokenizers", "normalizers", "processors", "decoders")
            if isinstance(part.get(name), list)
        ),
        None,
    )
    if inner is None or depth == 0:
        return [part] if part else []
    return [step for each in inner if isinstance(each, dict) for step in _steps(each, depth - 1)]


@dataclass
class Tokens:
    """Tokens by id: texts, types and scores."""

    texts: list[str]
    types: list[int]
    scores: list[float]

    def keys(self, kind: str, pre: str) -> dict[str, Any]:
        import numpy as np

        return {
            "tokenizer.ggml.model": kind,
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.token_type": np.array(self.types, np.int32),
        }


def read_tokens(source: Source, vocabulary: dict[str, int], unknown: str | None = None) -> Tokens:
    """All tokens, with those that were added; ids that no token has are unused."""
    added = added_tokens(source)
    most = max([*vocabulary.values(), *added], default=-1) + 1
    count = max(source.count, most)
    if count > MOST:
        raise source.refuse(f"at most {MOST} tokens", f"the id {count - 1}")
    if source.count and most > source.count:
        raise source.refuse(f"ids below {source.count}, as the model has embeddings", f"the id {most - 1}")
    tokens = Tokens(
        [f"[PAD{id}]" for id in range(count)], [int(TokenKind.UNUSED)] * count, [-10000.0] * count
    )
    for text, id in vocabulary.items():
        tokens.texts[id] = text
        tokens.types[id] = TokenKind.UNKNOWN if text == unknown else TokenKind.NORMAL
    for id, (text, special) in added.items():
        control = special or looks_special(text)
        tokens.texts[id] = text if control else text.replace("\u2581", " ")
        tokens.types[id] = (
            TokenKind.UNKNOWN if text == unknown else TokenKind.CONTROL if control else TokenKind.USER_DEFINED
        )
        tokens.scores[id] = -1000.0
    return tokens


def added_tokens(source: Source) -> dict[int, tuple[str, bool]]:
    """The tokens that were added: text, and whether it is special, by id."""
    found: dict[int, tuple[str, bool]] = {}
    added = source.found.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        id = token.get("id") if isinstance(token, dict) else None
        text = token.get("content") if isinstance(token, dict) else None
        if not is_id(id) or not isinstance(text, str):
            raise source.refuse("an id and a content in each of added_tokens", repr(token)[:200])
        found[id] = text, token.get("special") is True
    return found


def read_vocabulary(source: Source) -> dict[str, int]:
    """The object of texts and ids; each id is of one text."""
    vocabulary = source.model["vocab"]
    if not isinstance(vocabulary, dict) or not all(map(is_id, vocabulary.values())):
        raise source.refuse("an object of texts and ids as vocab", type(vocabulary).__name__)
    if len(set(vocabulary.values())) != len(vocabulary):
        raise source.refuse("a text of its own for each id", "an id of two texts")
    return vocabulary


def is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def looks_special(text: str) -> bool:
    """Whether llama.cpp's converter takes a token for a control token though its file does not say so."""
    if text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]"):
        return True
    marks = ("<|", "|>"), ("<\uff5c", "\uff5c>"), ("<unused", ">")
    return any(text.startswith(begin) and text.endswith(end) for begin, end in marks)
