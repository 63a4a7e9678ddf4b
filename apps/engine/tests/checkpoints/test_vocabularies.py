"""Tokenizers of folders give the ids that Hugging Face's own library gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_folders import llama_config
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from backbay.gguf import Config
from backbay_engine import tokenizer_from_gguf
from backbay_engine.checkpoints.transformers.config_json import read_settings
from backbay_engine.checkpoints.transformers.vocabularies import patterns, vocabulary_keys
from backbay_engine.text.tokenizers import Tokenizer as Ours

CORPUS = [
    *(path.read_text() for path in sorted((Path(__file__).parents[4] / "docs").glob("[a-e]*.md"))),
    "Größe Straße 東京タワー 한국어 Привет мир 12345 3.14 don't WE'LL\n\n\tx  y   z " * 20,
]
TEXTS = [
    "Hello, world! It's 12345.678 o'clock",
    "don't WE'LL  stop\n\n  x\t y   ",
    "東京タワー Straße é 한국어 1 22 333 4444",
    "def f(x):\n    return x+1  # comment\r\n",
    "   lead",
    "<|x|> mixed <|end|>ok  Ünï CamelCaseWords HTTPServer",
]
STEPS = {
    patterns.BYTE_LEVEL: lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    patterns.DIGITS: lambda: pre_tokenizers.Digits(individual_digits=True),
    patterns.DIGIT_RUNS: lambda: pre_tokenizers.Digits(individual_digits=False),
    "Punctuation": lambda: pre_tokenizers.Punctuation("contiguous"),
}


def ours(tokenizer: Tokenizer, folder: Path, **config: object) -> tuple[Ours, Config]:
    """The engine's tokenizer of a folder with this one."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(llama_config(tokenizer.get_vocab_size())))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    found = Config(vocabulary_keys(read_settings(folder), "llama", tokenizer.get_vocab_size()))
    return tokenizer_from_gguf(found), found


def agree(theirs: Tokenizer, found: Ours, texts: list[str]) -> None:
    for text in texts:
        assert found.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False).ids, (
            text
        )


def byte_level(steps: tuple[str, ...]) -> Tokenizer:
    made = Tokenizer(models.BPE())
    parts = [
        STEPS[step]() if step in STEPS else pre_tokenizers.Split(Regex(step), "isolated") for step in steps
    ]
    if patterns.BYTE_LEVEL not in steps:
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence(parts), decoders.ByteLevel()
    special = ["<s>", "<|end|>", "<|x|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


# llama.cpp cuts these otherwise than the models' own tokenizers
EXACT = {steps: name for steps, name in patterns.NAMES.items() if name not in ("falcon", "deepseek-coder")}


@pytest.mark.parametrize("steps", EXACT, ids=EXACT.values())
def test_patterns_are_recognized_and_cut_texts_alike(steps: tuple[str, ...], tmp_path: Path) -> None:
    theirs = byte_level(steps)
    found, config = ours(theirs, tmp_path, bos_token="<s>", eos_token="<|end|>")
    assert config["tokenizer.ggml.pre"] == EXACT[steps]
    agree(theirs, found, TEXTS)
    assert (found.bos, found.eos) == (0, 1)
    assert all(found.decode(found.encode(text, add_special=False), special=True) == text for text in TEXTS)


@pytest.mark.parametrize("first_space", ["Prepend", "Metaspace", None])
@pytest.mark.few(1)
def test_byte_pairs_in_pieces_are_those_of_sentencepiece(first_space: str | None, tmp_path: Path) -> None:
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Prepend("\u2581")] if first_space == "Prepend" else []
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "\u2581")])
    if first_space == "Metaspace":
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=1300, special_tokens=special + bytes_, show_progress=False, limit_alphabet=200
    )
    made.train_from_iterator(CORPUS, trainer)
    stored = json.loads(made.to_str())
    stored["added_tokens"] = [each for each in stored["added_tokens"] if each["content"] in special]
    theirs = Tokenizer.from_str(json.dumps(stored))
    found, config = ours(theirs, tmp_path, bos_token="<s>", eos_token="</s>", add_bos_token=True)
    assert (config["tokenizer.ggml.model"], config["tokenizer.ggml.add_space_prefix"]) == (
        "llama",
        first_space is not None,
    )
    agree(theirs, found, [text for text in TEXTS if not text.startswith(" ")])
    assert found.encode("a")[0] == found.bos == 1


def unigram() -> Tokenizer:
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def word_pieces() -> Tokenizer:
    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    made.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    )
    return made


@pytest.mark.parametrize(("make", "kind"), [(unigram, "t5"), (word_pieces, "bert")])
def test_other_kinds_of_tokenizers_give_the_same_ids(
    make: Callable[[], Tokenizer], kind: str, tmp_path: Path
) -> None:
    theirs = make()
    found, config = ours(theirs, tmp_path)
    assert config["tokenizer.ggml.model"] == kind
    agree(theirs, found, [TEXTS[0], "   lead", "a  b c", "CamelCaseWords, HTTPServer"])


def test_special_tokens_and_templates_come_from_the_folder(tmp_path: Path) -> None:
    theirs = byte_level((patterns.BYTE_LEVEL,))
    theirs.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    theirs.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    found, config = ours(theirs, tmp_path, bos_token="<s>", eos_token={"content": "<|im_end|>"})
    assert found.chat_template == "{{ messages }}"
    assert config["tokenizer.ggml.add_bos_token"] is True
    assert found.eos == theirs.token_to_id("<|im_end|>")
    assert found.encode("hi")[0] == 0


def test_the_end_of_an_answer_comes_from_the_generation_configuration_if_nothing_else_says_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    _, config = ours(byte_level((patterns.BYTE_LEVEL,)), tmp_path)
    assert config["tokenizer.ggml.eos_token_id"] == 1


def test_ids_without_a_token_are_unused(tmp_path: Path) -> None:
    theirs = byte_level((patterns.BYTE_LEVEL,))
    theirs.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(llama_config(2000)))
    config = vocabulary_keys(read_settings(tmp_path), "llama", 2000)
    assert len(config["tokenizer.ggml.tokens"]) == 2000
    assert config["tokenizer.ggml.tokens"][-1] == "[PAD1999]"
    assert config["tokenizer.ggml.token_type"][-1] == 5
