"""Special tokens: found in a text before the rest is encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias, final

from ..token_kinds import TokenKind
from .keys import NAME
from .vocabulary import Vocabulary

Fragment: TypeAlias = str | int  # text, or the id of a special token

_SPACE = " \t\n\v\f\r"  # C's isspace
_MASK_TAKES_SPACE = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASK_TAKES_SPACE_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


@final
class SpecialTokens:
    """Splits texts at special tokens: the longest token first, as llama.cpp does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
        sizes = {id: _bytes(vocabulary.texts[id]) for id in vocabulary.of_type(*kinds)}
        special = sorted(sizes, key=sizes.__getitem__, reverse=True)
        self._all = _Candidates(vocabulary, special)
        user_defined = set(vocabulary.of_type(TokenKind.USER_DEFINED))
        self._user_defined = _Candidates(vocabulary, [id for id in special if id in user_defined])
        self._takes_before, self._takes_after = _stripping(vocabulary, special)

    def split(self, text: str, parse_special: bool, plain: Collection[int] = ()) -> list[Fragment]:
        """The fragments of a text; the tokens in `plain` stay text."""
        fragments: list[Fragment] = [text] if text else []
        for token, id in (self._all if parse_special else self._user_defined).present(text):
            if id not in plain:
                fragments = [piece for each in fragments for piece in self._split(each, token, id)]
        return fragments

    def _split(self, fragment: Fragment, token: str, id: int) -> Iterable[Fragment]:
        if isinstance(fragment, int) or token not in fragment:
            yield fragment
            return
        parts = fragment.split(token)
        for index, part in enumerate(parts):
            if index > 0:
                yield id
                part = part.lstrip(_SPACE) if id in self._takes_after else part  # noqa: PLW2901
            if index < len(parts) - 1 and id in self._takes_before:
                part = part.rstrip(_SPACE)  # noqa: PLW2901
            if part:
                yield part


@final
class _Candidates:
    """Tokens to search for. A beginning that a text lacks rules out all tokens that share it."""

    def __init__(self, vocabulary: Vocabulary, ids: Iterable[int]) -> None:
        texts = vocabulary.texts
        self._tokens = [(texts[id], id, texts[id][:3]) for id in ids]
        self._beginnings = {beginning for _, _, beginning in self._tokens}

    def present(self, text: str) -> list[tuple[str, int]]:
        begins = {beginning for beginning in self._beginnings if beginning in text}
        if not begins:
            return []
        return [(token, id) for token, id, beginning in self._tokens if beginning in begins and token in text]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _stripping(vocabulary: Vocabulary, special: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of tokens that absorb the space before them, and the space after them. Files do not say; model names do."""
    config, ids = vocabulary.config, vocabulary.ids
    name = NAME.of(config, "").lower()
    if any(pre in vocabulary.pre for pre in _MASK_TAKES_SPACE) or any(
        architecture in config.architecture for architecture in _MASK_TAKES_SPACE_ARCHITECTURES
    ):
        return frozenset({ids["<mask>"]} if "<mask>" in ids else ()), frozenset()
    if "phi-3" in name or "phi3" in name:
        after = {*special, *(ids[text] for text in ("</s>",) if text in ids)}
        after -= {ids[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in ids}
        return frozenset(), frozenset(after)
    if "modern-bert" in name:
        return frozenset({ids["[MASK]"]} if "[MASK]" in ids else ()), frozenset()
    return frozenset(), frozenset()
