"""Names of pre-tokenizers, by the patterns in tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tokens import TokenizerFile

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ENDS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_ENDS}"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_ENDS}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(after: str, digits: str) -> str:
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{after}|{first}{_UPPER}+{_LOWER}*{after}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_ENDS}"


_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_ENDS}"
)
_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

BYTE_LEVEL, DIGITS, DIGIT_RUNS = "ByteLevel", "Digits", "digit runs"
NAMES: Mapping[tuple[str, ...], str] = {
    (BYTE_LEVEL,): "gpt-2",
    (_GPT2,): "gpt-2",
    (DIGITS, BYTE_LEVEL): "smollm",
    (DIGITS, _GPT2): "smollm",
    (_LLAMA3,): "dbrx",
    (_QWEN2,): "qwen2",
    (_QWEN35,): "qwen35",
    (_cased(f"{_CONTRACTIONS}?", r"\p{N}{1,3}"),): "gpt-4o",
    (_cased("", r"\p{N}"),): "tekken",
    (r"\p{N}{1,3}", _JAPANESE, _DEEPSEEK3): "deepseek-v3",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, DIGITS): "deepseek-coder",
    ("Punctuation", BYTE_LEVEL, DIGIT_RUNS, "[0-9][0-9][0-9]"): "falcon",
}
"""Names by the steps of a pre-tokenizer: patterns, or types of steps that need none."""
OWN: Mapping[tuple[str, str], str] = {
    ("command-r", "smollm"): "command-r",
    ("cohere2", "smollm"): "command-r",
    ("starcoder", "smollm"): "starcoder",
    ("starcoder2", "smollm"): "starcoder",
    ("glm4", "dbrx"): "glm4",
    ("glm4moe", "dbrx"): "glm4",
    ("modern-bert", "gpt-2"): "modern-bert",
    ("lfm2", "llama-bpe"): "lfm2",
    ("lfm2moe", "llama-bpe"): "lfm2",
}
"""The converter's name where a family has a name of its own for the same pattern."""


def pre_tokenizer(source: TokenizerFile) -> str:
    """The name of a byte-level pre-tokenizer, as llama.cpp's converter writes it."""
    steps = [step for each in source.steps("pre_tokenizer") for step in _step(each)]
    if len(steps) > 1 and steps[-1] == "bytes":
        steps.pop()  # it only spells bytes, the patterns before it cut the words
    name = NAMES.get(tuple(steps))
    if name is None:
        expected = (
            "a pre-tokenizer with patterns that are known; if llama.cpp knows the tokenizer, convert the model with its "
            "convert_hf_to_gguf.py"
        )
        raise source.refuse(expected, ", ".join(steps)[:600] or "none")
    if name == "dbrx" and source.model.get("ignore_merges") is True:
        name = "llama-bpe"
    roberta = any(step.get("type") == "RobertaProcessing" for step in source.steps("post_processor"))
    if name == "gpt-2" and roberta:
        return "roberta-bpe"
    return OWN.get((source.architecture, name), name)


def _step(step: dict[str, Any]) -> list[str]:
    kind = str(step.get("type"))
    if kind == "Split":
        pattern = step.get("pattern")
        found = pattern.get("Regex", pattern.get("String")) if isinstance(pattern, dict) else None
        return [_plain(found)] if isinstance(found, str) else [kind]
    if kind == BYTE_LEVEL:
        return [BYTE_LEVEL if step.get("use_regex", True) is True else "bytes"]
    if kind == DIGITS:
        return [DIGITS if step.get("individual_digits") is True else DIGIT_RUNS]
    return [kind]


def _plain(pattern: str) -> str:
    """A pattern without spellings that mean the same."""
    spelled = pattern.replace(r"\p{N}{1}", r"\p{N}").replace("'(?i:[sdmt]|ll|ve|re)", _CONTRACTIONS)
    for same in ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"):
        spelled = spelled.replace(same, _CONTRACTIONS)
    return spelled.replace(r"\s*[\r\n]|", r"\s*[\r\n]+|") if spelled.endswith(r"\s+(?!\S)|\s+") else spelled
