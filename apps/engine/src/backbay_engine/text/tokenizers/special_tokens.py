"""Special tokens: their roles, and their places in a text, which are found before the rest is encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TypeAlias, final

from ..token_kinds import TokenKind
from .vocabulary import NAME, Vocabulary

Fragment: TypeAlias = str | int  # text, or the id of a special token

_SPACE = " \t\n\v\f\r"  # C's isspace
_MASK_TAKES_SPACE = ("jina-v2-de", "jina-v2-es", "jina-v2-code")
_MASK_TAKES_SPACE_ARCHITECTURES = ("nomic-bert-moe", "jina-bert-v3")


@final
class SpecialTokenSplitter:
    """Splits texts at special tokens: the longest token first, as llama.cpp does."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        kinds = (TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNKNOWN)
        texts = {id: vocabulary.texts[id] for id in vocabulary.of_type(*kinds)}
        sizes = {id: len(text.encode("utf-8", "surrogateescape")) for id, text in texts.items()}
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


def _stripping(vocabulary: Vocabulary, special: Iterable[int]) -> tuple[frozenset[int], frozenset[int]]:
    """Ids of tokens that absorb the space before them, and the space after them. Files do not say; model names do."""
    config, ids = vocabulary.config, vocabulary.ids
    name, mask = NAME.of(config, "").lower(), ""
    kinds = any(pre in vocabulary.pre for pre in _MASK_TAKES_SPACE)
    if kinds or any(each in config.architecture for each in _MASK_TAKES_SPACE_ARCHITECTURES):
        mask = "<mask>"
    elif "phi-3" in name or "phi3" in name:
        after = {*special, *(ids[text] for text in ("</s>",) if text in ids)}
        after -= {ids[text] for text in ("<unk>", "<s>", "<|endoftext|>") if text in ids}
        return frozenset(), frozenset(after)
    elif "modern-bert" in name:
        mask = "[MASK]"
    return frozenset({ids[mask]} if mask in ids else ()), frozenset()


END_OF_TURN = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<end_of_utterance>"),
)
END_OF_MESSAGE = ("<|eom_id|>",)
END_OF_GENERATION = (
    *(*END_OF_TURN, *END_OF_MESSAGE, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "[EOS]"),
    *("<eos>", "<turn|>", "<|tool_response>", "[e~["),
)
# The last three only make their tokens control tokens. DeepSeek writes a full-width bar.
ROLES: dict[str, tuple[str, ...]] = {
    "eot": END_OF_TURN,
    "eom": END_OF_MESSAGE,
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>"),
        *("<PRE>", "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>"),
        *("<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>"),
        *("<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>"),
    ),
}
HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss's, which are always shown


def assign_roles(vocabulary: Vocabulary) -> frozenset[int]:
    """Complete `special`, correct `types`, and return the ids that end an answer."""
    special = vocabulary.special
    for role, names in ROLES.items():
        found = _present(vocabulary, names)
        if found and role not in special:
            special[role] = found[0]
            vocabulary.types[found[0]] = TokenKind.CONTROL
    ends = {special[role] for role in ("fim_pad", "fim_rep", "fim_sep") if role in special}
    for id in _present(vocabulary, END_OF_GENERATION):
        ends.add(id)
        vocabulary.types[id] = TokenKind.CONTROL
    for id in _present(vocabulary, HARMONY):
        vocabulary.types[id] = TokenKind.USER_DEFINED
    ends.update(special[role] for role in ("eos", "eot", "eom") if role in special)
    _except(vocabulary, ends)
    return frozenset(ends)


def _present(vocabulary: Vocabulary, names: Iterable[str]) -> list[int]:
    ids = vocabulary.ids
    return [ids[name] for name in names if name in ids]


def _except(vocabulary: Vocabulary, ends: set[int]) -> None:
    """Exceptions: other tokens of the vocabulary show that a listed text does not end an answer."""
    texts = {vocabulary.texts[id]: id for id in ends}
    has = texts.keys()
    calls = "<|call|>" in has or "<|calls|>" in has
    if "<|end|>" in has and calls and ("<|return|>" in has or "<|flush|>" in has):
        ends.discard(texts["<|end|>"])
        vocabulary.types[texts["<|end|>"]] = TokenKind.USER_DEFINED
    if "</s>" in has and ("<|tool_response>" in has or "<|plamo:eos|>" in has):
        ends.discard(texts["</s>"])
        vocabulary.types[texts["</s>"]] = TokenKind.NORMAL
