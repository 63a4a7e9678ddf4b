"""SentencePiece vocabularies, compared with the slow definition."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import NORMAL, PIECES, PROPERTY, USER_DEFINED, metadata, sentencepiece, with_keys

from backbay_engine.text.tokenizers import tokenizer_from_gguf

CONFIG = sentencepiece(PIECES)
OURS = tokenizer_from_gguf(CONFIG)
IDS = {piece: 259 + rank for rank, piece in enumerate(PIECES)}
TEXTS = st.text(alphabet=" \u2581abdehilortw=\u00fc\u00df\u4f60\U0001f600\n", max_size=40)


def slowly(text: str) -> list[int]:
    """Merge the neighbours with the best piece, the leftmost of equal ones, until no neighbours make a piece."""
    symbols = list("\u2581" + text.replace(" ", "\u2581")) if text else []
    while True:
        pairs = [(PIECES[a + b], -at, at) for at, (a, b) in enumerate(pairwise(symbols)) if a + b in PIECES]
        if not pairs:
            break
        _, _, at = max(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    ids: list[int] = []
    for symbol in symbols:
        ids += [IDS[symbol]] if symbol in IDS else [3 + byte for byte in symbol.encode()]
    return ids


@PROPERTY
@given(TEXTS)
def test_the_best_pieces_are_merged_first(text: str) -> None:
    assert OURS.encode(text) == [1, *slowly(text)]


WITHIN_WORDS = {piece: score for piece, score in PIECES.items() if piece != "=\u2581"}
BY_WORDS = tokenizer_from_gguf(sentencepiece(WITHIN_WORDS))
AS_A_WHOLE = tokenizer_from_gguf(sentencepiece({**WITHIN_WORDS, "\u0001\u2581": -99.0}))


@PROPERTY
@given(TEXTS)
def test_words_are_merged_one_by_one_where_no_piece_reaches_beyond_one(text: str) -> None:
    assert BY_WORDS.encode(text) == AS_A_WHOLE.encode(text)


@PROPERTY
@given(TEXTS.filter(lambda text: "\u2581" not in text))
def test_decoding_what_was_encoded_gives_the_text_back(text: str) -> None:
    assert OURS.decode(OURS.encode(text)) == text


def test_of_two_ways_to_the_same_piece_the_left_one_is_taken() -> None:
    # ab a ba: both pairs make aba
    assert OURS.encode("abaab", add_special=False)[1:] == slowly("abaab")[1:]
    tie = tokenizer_from_gguf(
        sentencepiece({"ab": -1.0, "bc": -1.0, "a": -5.0, "b": -5.0, "c": -5.0}, add_space_prefix=False)
    )
    assert tie.encode("abc", add_special=False) == [259, 263]


def test_a_space_stands_before_the_text_and_after_each_special_token() -> None:
    hello = IDS["\u2581hello"]
    assert OURS.encode("hello") == [1, hello]
    assert OURS.encode("<s>hello</s>hello", add_special=False) == [1, hello, 2, hello]
    assert OURS.encode("hello") == OURS.encode("hello", parse_special=False)
    without = tokenizer_from_gguf(sentencepiece(PIECES, add_space_prefix=False))
    assert without.encode("hello") == [1, IDS["hello"]]
    assert OURS.encode("") == [1]


def test_what_goes_on_keeps_its_space() -> None:
    ids = [IDS["\u2581hello"], IDS["\u2581world"]]
    assert OURS.decode(ids) == "hello world"
    assert OURS.decode([1, *ids]) == "hello world"
    assert OURS.decode(ids, continues=True) == " hello world"


def test_control_tokens_are_written_only_on_request() -> None:
    ids = [1, IDS["\u2581hello"], 2]
    assert OURS.decode(ids) == "hello"
    assert OURS.decode(ids, special=True, continues=True) == "<s> hello</s>"
    stream = OURS.stream(continues=True, shown=[2])
    assert "".join(map(stream.push, ids)) == " hello</s>"


def test_a_character_without_bytes_becomes_the_unknown_token() -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a"]
    tokenizer = tokenizer_from_gguf(metadata("llama", tokens, [2, 3, 3, NORMAL, NORMAL], scores=[0.0] * 5))
    assert tokenizer.encode("a\u00fc", add_special=False) == [3, 4, 0, 0]


def test_phi3_drops_the_space_after_its_special_tokens() -> None:
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a", "<|user|>"]
    types = [2, 3, 3, NORMAL, NORMAL, USER_DEFINED]
    config = with_keys(metadata("llama", tokens, types, scores=[0.0] * 6), general__name="Phi-3 Mini")
    tokenizer = tokenizer_from_gguf(config)
    assert tokenizer.encode("<|user|> \n a", add_special=False) == [5, 3, 4]
    assert tokenizer.encode("<s> a", add_special=False) == [1, 3, 3, 4]


@pytest.mark.parametrize("length", [1, 100_000])
def test_a_long_word_is_merged_in_one_go(length: int) -> None:
    ids = OURS.encode("a" * length, add_special=False)
    assert OURS.decode(ids) == "a" * length
