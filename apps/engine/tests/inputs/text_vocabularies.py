"""Small vocabularies of each kind, as GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import settings
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from backbay.gguf import Config

PROPERTY = settings(deadline=None, max_examples=100, derandomize=True)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
CORPUS = """
It was the best of times, it was the worst of times; it's what they'll say we've done in 1859 or 2026.
Der schnelle braune Fuchs springt über den faulen Hund. Ça va très bien, merci! 你好世界。今日は良い天気です。
for (int i = 0; i < 100; ++i) { total += values[i] * 3.14159; }
the theory of the thing, and then the other thing \U0001f600\U0001f680, naïve café, Ελληνικά, русский текст
"""


def metadata(kind: str, tokens: Iterable[str], types: Iterable[int] | None = None, **more: Any) -> Config:
    """The metadata of a vocabulary; `more` are further keys, without the prefix tokenizer.ggml."""
    tokens = list(tokens)
    values = {"model": kind, "tokens": tokens, "token_type": list(types or [NORMAL] * len(tokens)), **more}
    return Config({f"tokenizer.ggml.{key}": value for key, value in values.items()})


def with_keys(config: Config, **more: Any) -> Config:
    values: Mapping[str, Any] = {key: config[key] for key in config}
    return Config({**values, **{key.replace("__", "."): value for key, value in more.items()}})


def trained(size: int = 420) -> Tokenizer:
    """A byte-level vocabulary that `tokenizers` made of the text above, cut as GPT-2's is."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    tokenizer.add_special_tokens([AddedToken(text) for text in ("<s>", "</s>", "<|im_end|>")])
    return tokenizer


def byte_pairs(tokenizer: Tokenizer, pre: str = "gpt-2", **more: Any) -> Config:
    """The same vocabulary as metadata; <s>, </s> and <|im_end|> are its last tokens."""
    import json

    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.get_vocab_size())]
    count = len(tokens)
    types = [NORMAL] * (count - 3) + [CONTROL] * 3
    keys = {"pre": pre, "merges": merges, "bos_token_id": count - 3, "eos_token_id": count - 2, **more}
    return metadata("gpt2", tokens, types, **keys)


def sentencepiece(pieces: Mapping[str, float], **more: Any) -> Config:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, the bytes, then pieces with their scores."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    scores = [0.0] * 259 + list(pieces.values())
    return metadata("llama", tokens, types, scores=scores, **more)


# The best first, each a point worse than the one before.
_RANKED = (
    "\u2581\u2581 he in \u2581t ll \u2581the aa \u2581\u2581\u2581\u2581 er llo hello \u2581hello aaaa ing \u2581world wor ld or lo "
    "\u00fc\u00df aba ab ba \u2581\u2581\u2581 \u2581w wo =\u2581 \u2581 a b d e g h i l n o r t w \u00fc \u00df ="
)
PIECES = {piece: -float(rank) for rank, piece in enumerate(_RANKED.split(" "))}
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "\u2581hello",
    "\u2581world",
    "\u2581token",
    "ization",
    "s",
]
WORDS += [
    "\u2581,",
    "\u2581!",
    "\u2581a",
    "b",
    "c",
    "\u2581cafe",
    "\u2581\u4f60",
    "\u2581\u597d",
    "\u2581ab",
    "\u2581$",
]


def wordpiece(**more: Any) -> Config:
    keys = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3, "mask_token_id": 4, **more}
    return metadata("bert", WORDS, [CONTROL] * 5 + [NORMAL] * (len(WORDS) - 5), **keys)
