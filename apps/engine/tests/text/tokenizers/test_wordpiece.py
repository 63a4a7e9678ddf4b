"""WordPiece vocabularies, as BERT's embeddings use them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import PROPERTY, WORDS, wordpiece

from backbay_engine.text.tokenizers import tokenizer_from_gguf

OURS = tokenizer_from_gguf(wordpiece())


def spelled(text: str) -> list[str]:
    return [WORDS[id] for id in OURS.encode(text, add_special=False)]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("Hello, WORLD!", ["\u2581hello", "\u2581,", "\u2581world", "\u2581!"]),
        ("tokenizations", ["\u2581token", "ization", "s"]),
        ("abc", ["\u2581ab", "c"]),
        ("abx", ["[UNK]"]),
        ("Caf\u00e9 \u4f60\u597d", ["\u2581cafe", "\u2581\u4f60", "\u2581\u597d"]),
        ("hel\u200blo\0\ufffd", ["\u2581hello"]),
        ("a\u2003\u3000a\x85a", ["\u2581a"] * 3),
        ("$a", ["\u2581$", "\u2581a"]),
        ("[MASK]", ["[MASK]"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_a_text_is_made_of_the_longest_tokens(text: str, tokens: list[str]) -> None:
    assert spelled(text) == tokens


def test_a_text_stands_between_its_special_tokens() -> None:
    assert OURS.encode("hello") == [2, 5, 3]
    assert OURS.encode("") == [2, 3]
    assert (OURS.bos, OURS.sep, OURS.eos) == (2, 3, None)


def test_case_and_accents_stay_where_the_file_says_so() -> None:
    cased = tokenizer_from_gguf(wordpiece(**{"normalizer.lowercase": False}))
    assert cased.encode("Hello hello caf\u00e9 cafe", add_special=False) == [1, 5, 1, 15]


def test_decoding_puts_spaces_between_words() -> None:
    assert OURS.decode(OURS.encode("hello tokenizations")) == "hello tokenizations"


def test_a_word_of_any_length_is_looked_up_in_bounded_time() -> None:
    assert OURS.encode("a" + "b" * 200_000, add_special=False)[0] == WORDS.index("\u2581ab")


@PROPERTY
@given(st.text(max_size=50))
def test_any_text_has_tokens(text: str) -> None:
    assert all(0 <= id < OURS.vocabulary_size for id in OURS.encode(text))
