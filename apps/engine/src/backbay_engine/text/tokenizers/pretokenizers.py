"""Pre-tokenizers: how byte-pair encoding cuts texts into words, by the names that llama.cpp's converter writes.

Each pattern cuts the pieces of the pattern before it. The patterns are llama.cpp's, in the syntax of `tokenizers`.
Where llama.cpp differs from a model's own tokenizer, they follow llama.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import final

# Characters of Unicode 16, which llama.cpp's tables lack: they belong to no category, whatever engine runs.
_LATER = (
    r"\x{897}\x{1B4E}\x{1B4F}\x{1B7F}\x{1C89}\x{1C8A}\x{2427}-\x{2429}\x{31E4}\x{31E5}\x{A7CB}-\x{A7CD}"
    r"\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D40}-\x{10D8F}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}"
    r"\x{116D0}-\x{116E3}\x{11BC0}-\x{11BF9}\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}"
    r"\x{18CFF}\x{1CC00}-\x{1CEB3}\x{1E5D0}-\x{1E5FF}\x{1F8B2}-\x{1F8C1}\x{1FA89}-\x{1FA8F}\x{1FABE}\x{1FAC6}"
    r"\x{1FADC}-\x{1FADF}\x{1FAE9}\x{1FBCB}-\x{1FBEF}"
)
_CATEGORY = re.compile(r"\\p\{[LNMPS]\}")

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
_SYMBOLS_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _SPACES
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|"
_LLAMA3 = rf"{_CONTRACTION}|{_WORDS}\p{{N}}{{1,3}}|{_SYMBOLS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORDS}\p{{N}}|{_SYMBOLS}"
_LINES = r"[^\n]+|\n+"
_ASCII_WORDS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
_MARKED_WORDS = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
_DEEPSEEK3 = _ASCII_WORDS + _MARKED_WORDS + r" ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES
_JAPANESE = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_SENTENCES = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_HAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2EBEF}"
    r"\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]"
)
_NOT_HAN = rf"[\p{{L}}&&[^{_HAN}]]+"

# Digits in groups of three from the right. Text before a run of digits stays with its first group.
_DIGIT_GROUPS = (
    r"(?:\A|(?<=\p{N}))[^\p{N}]*+\p{N}++",
    r"\A[^\p{N}]*\p{N}{1,2}(?=(?:\p{N}{3})+\z)",
    r"(?:\A[^\p{N}]+)?\p{N}{1,3}",
)

_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}&&[^\s]]+"
_ASIAN_SCRIPTS = (
    "\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-"
    "\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff"
)
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_JAPANESE}"
)


def _cased(letters: str, after: str) -> str:
    """Words whose capitals come first. Only ASCII letters have case here, as in llama.cpp."""
    first = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = rf"[{letters}&&[^a-z]]", rf"[{letters}&&[^A-Z]]"
    return f"{first}{upper}*{lower}+{after}|{first}{upper}+{lower}*{after}|"


@final
@dataclass(frozen=True)
class PreTokenizer:
    """The patterns that cut a text, and settings that depend on the same name."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is a token needs no merges
    add_bos: bool = False
    add_sep: bool = False
    bos: bool = True  # there is a default one
    byte_level: bool = True  # bytes are spelled in GPT-2's alphabet; else spaces are, as SentencePiece does

    def regexes(self) -> list[str]:
        """The patterns, with the categories of Unicode 15.1."""
        later = _LATER.replace("\\", "\\\\")
        return [_CATEGORY.sub(rf"[\g<0>&&[^{later}]]", each) for each in self.patterns]


def _cut_by(*patterns: str, **settings: bool) -> PreTokenizer:
    return PreTokenizer(patterns, **settings)


_GPT4O_END = r"\p{N}{1,3}|" + _SYMBOLS_SLASHES
_gpt2 = _cut_by(_GPT2)
_digits = _cut_by(r"\p{N}", _GPT2)
_llama3 = _cut_by(_LLAMA3, ignore_merges=True, add_bos=True)
_llama3_plain = _cut_by(_LLAMA3)
_qwen2 = _cut_by(_QWEN2)
_deepseek3 = _cut_by(r"\p{N}{1,3}", _JAPANESE, _DEEPSEEK3)
_gpt4o = _cut_by(_cased(r"\p{L}", f"{_CONTRACTION}?") + _GPT4O_END)
_sentences = _cut_by(_SENTENCES)
_glm = replace(_llama3_plain, bos=False)
_bailing = _cut_by(
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|" + _WORDS + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_gemma4 = _cut_by(_LINES, add_bos=True, byte_level=False)

DEFAULT = _cut_by(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")

PRETOKENIZERS = {
    "default": DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de"), _gpt2),
    **dict.fromkeys(("a.x-4.0", "mellum", "modern-bert", "mpt", "olmo", "jais", "exaone4"), _gpt2),
    **dict.fromkeys(("trillion", "granite-docling"), _gpt2),
    **dict.fromkeys(("jina-v1-en", "jina-v2-code", "roberta-bpe"), replace(_gpt2, add_sep=True)),
    **dict.fromkeys(("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone"), _digits),
    **dict.fromkeys(("minerva-7b", "mellum2"), _digits),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _llama3
    ),
    **dict.fromkeys(("lfm2", "jina-v5-nano"), _llama3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _llama3_plain),
    "chatglm-bpe": _glm,
    **dict.fromkeys(("glm4", "glm5"), replace(_glm, ignore_merges=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), _qwen2),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), _qwen2),
    "qwen35": _cut_by(
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES
    ),
    "ufakzeka": _cut_by(_WORDS + r"\p{N}|" + _SYMBOLS),
    "laguna": _cut_by(_LINES, _QWEN2),
    "minicpm5": _cut_by(
        r"\p{N}{1,3}", f"{_CONTRACTION}|{_WORDS}" + r"\p{N}+|" + _SYMBOLS, ignore_merges=True
    ),
    "jais-2": _cut_by(
        f"{_CONTRACTION}|{_WORDS}" + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)"
        r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
    ),
    "seed-coder": _cut_by(f"{_CONTRACTION}|{_WORDS}" + r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + _SPACES),
    "exaone-moe": _cut_by(
        _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), _bailing),
    "falcon": _cut_by(r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "deepseek-llm": _cut_by(
        r"[\r\n]",
        rf"\s?[{_DEEPSEEK_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001-\u3002]+",
        r"(?<!\s)\s+\z",
        _DEEPSEEK_CJK,
        r"\p{N}+",
    ),
    "deepseek-coder": _cut_by(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"), _deepseek3),
    "spark2_5": _cut_by(
        r"\p{N}{1,3}",
        _JAPANESE,
        _ASCII_WORDS + _MARKED_WORDS + r" ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ),
    "youtu": _cut_by(
        _YOUTU_SCRIPTS,
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + f"{_CONTRACTION}?|" + r"\p{N}|" + _SYMBOLS_SLASHES,
        ignore_merges=True,
    ),
    "afmoe": _cut_by(*_DIGIT_GROUPS, f"[{_ASIAN_SCRIPTS}]+", _DEEPSEEK3),
    "tekken": _cut_by(_cased(r"\p{L}", "") + r"\p{N}|" + _SYMBOLS_SLASHES, ignore_merges=True, add_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _gpt4o),
    "granite-embed-multi-97m": _cut_by(
        _cased(r"\p{L}\p{M}", f"{_CONTRACTION}?") + _GPT4O_END, ignore_merges=True
    ),
    **dict.fromkeys(
        ("tiny_aya", "cohere2moe"),
        _cut_by(*_DIGIT_GROUPS, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+" + f"{_CONTRACTION}?|{_GPT4O_END}"),
    ),
    "kimi-k2": _cut_by(
        f"{_HAN}+|" + r"[^\r\n\p{L}\p{N}]?" + f"{_NOT_HAN}{_CONTRACTION}?|" + r"\p{N}{1,3}|" + _SYMBOLS
    ),
    # As [0-9]+(?=...) from each place this would look to the end of long numbers again and again.
    "superbpe": _cut_by(r"\p{N}+", "[0-9]++", r"\A[0-9]{1,2}(?=(?:[0-9]{3})+\z)", "[0-9]{1,3}"),
    "chameleon": _cut_by(
        "<sentinel:[0-9]+>",
        "(?:IMGIMG)(?:[A-I]){1,4}Z",
        r"[\t\n]|    |  ",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
        add_bos=True,
    ),
    **dict.fromkeys(("poro-chat", "bloom", "gpt3-finnish"), _sentences),
    "viking": _cut_by(_SENTENCES, r"\p{N}"),
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m"), _gemma4),
    "sarvam-moe": _cut_by(_LINES, byte_level=False),
}
