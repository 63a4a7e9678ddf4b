"""The tokens of a tokenizer.json, checked; special tokens and chat templates, by the rules of the gguf package."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from backbay import ModelFileError

from ....text.token_kinds import TokenKind
from ...json_files import LARGEST, read_bytes, read_object
from ..config_json import Settings

MOST = 1 << 22


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json, its part `model`, and what the model says of the vocabulary."""

    path: Path
    found: dict[str, Any]
    model: dict[str, Any]
    architecture: str
    count: int  # rows of the embedding

    def refuse(self, expected: str, found: object) -> ModelFileError:
        return ModelFileError(self.path, None, expected, found)

    def steps(self, name: str) -> list[dict[str, Any]]:
        """The steps of a part, in order, whether it is a sequence or one step; none if it is not there."""
        found = self.found.get(name)
        return _steps(found if isinstance(found, dict) else {}, 8)


def _steps(part: dict[str, Any], depth: int) -> list[dict[str, Any]]:
    names = "pretokenizers", "normalizers", "processors", "decoders"
    inner = next((part[name] for name in names if isinstance(part.get(name), list)), None)
    if inner is None or depth == 0:
        return [part] if part else []
    return [step for each in inner if isinstance(each, dict) for step in _steps(each, depth - 1)]


@dataclass
class TokenTable:
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


def read_tokens(source: TokenizerFile, vocabulary: dict[str, int], unknown: str | None = None) -> TokenTable:
    """All tokens, with those that were added; ids that no token has are unused."""
    added = added_tokens(source)
    most = max([*vocabulary.values(), *added], default=-1) + 1
    count = max(source.count, most)
    if count > MOST:
        raise source.refuse(f"at most {MOST} tokens", f"the id {count - 1}")
    if source.count and most > source.count:
        raise source.refuse(f"ids below {source.count}, as the model has embeddings", f"the id {most - 1}")
    pads = [f"[PAD{id}]" for id in range(count)]
    tokens = TokenTable(pads, [int(TokenKind.UNUSED)] * count, [-10000.0] * count)
    for text, id in vocabulary.items():
        tokens.texts[id] = text
        tokens.types[id] = TokenKind.UNKNOWN if text == unknown else TokenKind.NORMAL
    for id, (text, special) in added.items():
        control = special or looks_special(text)
        tokens.texts[id] = text if control else text.replace("\u2581", " ")
        kind = TokenKind.CONTROL if control else TokenKind.USER_DEFINED
        tokens.types[id] = TokenKind.UNKNOWN if text == unknown else kind
        tokens.scores[id] = -1000.0
    return tokens


def added_tokens(source: TokenizerFile) -> dict[int, tuple[str, bool]]:
    """The tokens that were added: text, and whether it is special, by id."""
    found: dict[int, tuple[str, bool]] = {}
    added = source.found.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        id = token.get("id") if isinstance(token, dict) else None
        text = token.get("content") if isinstance(token, dict) else None
        if not is_id(id) or not isinstance(text, str):
            raise source.refuse("an id and a content in each of added_tokens", repr(token)[:200])
        found[id] = text, token.get("special") is True
    texts = {text for text, _ in found.values()}
    return {id: (_renamed(source, text, texts), special) for id, (text, special) in found.items()}


RENAMED = {"phi4mm": {"<|endoftext10|>": "<|image|>", "<|endoftext11|>": "<|audio|>"}}
"""Tokens for pictures and sounds that published files name otherwise, by the architecture."""


def _renamed(source: TokenizerFile, text: str, others: set[str]) -> str:
    name = RENAMED.get(source.architecture, {}).get(text, text)
    return text if name in others else name


def read_vocabulary(source: TokenizerFile) -> dict[str, int]:
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


NAMES = {"unk": "unknown", "sep": "seperator", "pad": "padding"}  # GGUF's spelling
TEMPLATE = "tokenizer.chat_template"
_PREFIX = "tokenizer.ggml."
_FILES = "chat_template.jinja", "chat_template.json", "generation_config.json"


def special_keys(source: TokenizerFile, settings: Settings) -> dict[str, Any]:
    from gguf.vocab import SpecialVocab

    folder = source.path.parent
    for name in _FILES:
        if (folder / name).exists():
            read_bytes(folder / name)  # of bounded size
    for path in folder.glob("additional_chat_templates/*.jinja"):
        read_bytes(path)
    logger = logging.getLogger("gguf.vocab")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        found = SpecialVocab(folder, load_merges=False, n_vocab=source.count or None)
    except Exception as error:
        # The package trusts the files; whatever is wrong with them ends here.
        raise source.refuse(
            "files of a tokenizer that the gguf package understands", f"{type(error).__name__}: {error}"
        ) from error
    finally:
        logger.setLevel(level)
    ids = {name: id for name, id in found.special_token_ids.items() if is_id(id)}
    if "eos" not in ids:  # generation_config.json may name the token that ends an answer, or several
        ends = read_object(settings.folder / "generation_config.json", required=False).get("eos_token_id")
        first = ends[0] if isinstance(ends, list) and ends else ends
        ids |= {"eos": first} if is_id(first) else {}
    keys: dict[str, Any] = {f"{_PREFIX}{NAMES.get(name, name)}_token_id": id for name, id in ids.items()}
    adds = {name: value for name, value in found.add_special_token.items() if name in ("bos", "eos", "sep")}
    keys |= {f"{_PREFIX}add_{name}_token": bool(value) for name, value in adds.items()}
    return {**keys, **_templates(source, found.chat_template)}


def _templates(source: TokenizerFile, found: object) -> dict[str, Any]:
    if isinstance(found, str):
        return {TEMPLATE: found}
    templates: dict[str, Any] = {}
    for each in found if isinstance(found, list) else ():
        name, text = (each.get("name"), each.get("template")) if isinstance(each, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str) or len(name) > 100 or len(text) > LARGEST:
            raise source.refuse("a name and a template in each chat template", repr(each)[:200])
        templates[TEMPLATE if name == "default" else f"{TEMPLATE}.{name}"] = text
    return templates
