"""The roles of tokens: which tokens end an answer, and which are control tokens.

Files say little about roles, so the texts of the tokens decide, as in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..token_kinds import TokenKind
from .vocabulary import Vocabulary

END_OF_TURN = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<end_of_utterance>",
)
END_OF_MESSAGE = ("<|eom_id|>",)
END_OF_GENERATION = (
    *END_OF_TURN,
    *END_OF_MESSAGE,
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
)
PADDING = ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")
REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
FILE = ("<|file_sep|>",)
# These roles only make their tokens control tokens. DeepSeek writes a full-width bar.
PREFIX = (
    *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>"),
    *("<PRE>", "\u2581<PRE>", "<|code_prefix|>", "<|prefix|>"),
)
SUFFIX = (
    *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>"),
    *("<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>"),
)
MIDDLE = (
    *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<\uff5cfim\u2581end\uff5c>"),
    *("<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>"),
)
ROLES: dict[str, tuple[str, ...]] = {
    "eot": END_OF_TURN,
    "eom": END_OF_MESSAGE,
    "fim_pad": PADDING,
    "fim_rep": REPOSITORY,
    "fim_sep": FILE,
    "fim_pre": PREFIX,
    "fim_suf": SUFFIX,
    "fim_mid": MIDDLE,
}
HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss's, which are always shown


def assign_roles(vocabulary: Vocabulary) -> frozenset[int]:
    """Complete `special`, correct `types`, and return the ids that end an answer."""
    special = vocabulary.special
    for role, names in ROLES.items():
        _find(vocabulary, role, names)
    ends = {special[role] for role in ("fim_pad", "fim_rep", "fim_sep") if role in special}
    for id in _present(vocabulary, END_OF_GENERATION):
        ends.add(id)
        vocabulary.types[id] = TokenKind.CONTROL
    for id in _present(vocabulary, HARMONY):
        vocabulary.types[id] = TokenKind.USER_DEFINED
    ends.update(special[role] for role in ("eos", "eot", "eom") if role in special)
    _except(vocabulary, ends)
    return frozenset(ends)


def _find(vocabulary: Vocabulary, role: str, names: Iterable[str]) -> None:
    if role in vocabulary.special:
        return
    for id in _present(vocabulary, names)[:1]:
        vocabulary.special[role] = id
        vocabulary.types[id] = TokenKind.CONTROL


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
