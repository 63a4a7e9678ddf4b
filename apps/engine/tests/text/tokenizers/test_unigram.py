"""Unigram vocabularies: the best way to cut a text, after the file's normalization."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise, product

import numpy as np
import pytest
from charsmaps import charsmap
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import CONTROL, NORMAL, PROPERTY, UNKNOWN, UNUSED, USER_DEFINED, metadata

from backbay import ModelFileError
from backbay_engine.text.tokenizers import Tokenizer, tokenizer_from_gguf

SPECIAL = ["<s>", "</s>", "<unk>", "<extra>", "unused"]
TYPES = [CONTROL, CONTROL, UNKNOWN, USER_DEFINED, UNUSED]
PIECES = {
    "▁": -2.0,
    "a": -3.0,
    "b": -3.5,
    "c": -4.0,
    "ab": -5.0,
    "▁a": -4.5,
    "bc": -8.0,
    "abc": -8.5,
    "é": -6.0,
}
RULES = {
    "\t": " ",
    "\n": " ",
    "\u3000": " ",
    "\u200b": "",
    "ﬀ": "ab",
    "\uff21": "a",
    "e\u0301": "é",
    "e\u0301\u0323": "b",
}


def unigram(**more: object) -> Tokenizer:
    keys = {
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
        "precompiled_charsmap": charsmap(RULES),
    }
    scores = [0.0] * len(SPECIAL) + list(PIECES.values())
    types = TYPES + [NORMAL] * len(PIECES)
    names = {"bos_token_id": 0, "eos_token_id": 1, "unknown_token_id": 2}
    return tokenizer_from_gguf(
        metadata("t5", [*SPECIAL, *PIECES], types, scores=scores, **{**names, **keys, **more})
    )


OURS = unigram()
IDS = {piece: id for id, piece in enumerate(PIECES, len(SPECIAL))}
UNKNOWN_ID = 2


def pieces(text: str, tokenizer: Tokenizer = OURS) -> list[str]:
    return [tokenizer.token_text(id) for id in tokenizer.encode(text, add_special=False)]


def best_score(text: str) -> float:
    """The best way to cut a text, by trying all."""
    worst = min(PIECES.values()) - 10
    sums = []
    for cuts in product([False, True], repeat=len(text) - 1):
        ends = [0, *[n + 1 for n, cut in enumerate(cuts) if cut], len(text)]
        parts = [text[begin:end] for begin, end in pairwise(ends)]
        sums.append(sum(PIECES.get(part, worst if len(part) == 1 else -np.inf) for part in parts))
    return max(sums)


@PROPERTY
@given(st.text("abcéx", min_size=1, max_size=8))
def test_the_tokens_are_those_whose_scores_add_up_to_the_most(word: str) -> None:
    found = OURS.encode(word, add_special=False)
    if UNKNOWN_ID not in found:  # several in a row are one
        scores = dict(zip(IDS.values(), PIECES.values(), strict=True))
        assert sum(scores[id] for id in found) == pytest.approx(best_score(f"▁{word}"))
    assert "".join(map(OURS.token_text, found)) == "".join(["▁", *_unknown_as_one(word)])


def _unknown_as_one(word: str) -> list[str]:
    known = [c if c in PIECES else "<unk>" for c in word]
    return [c for n, c in enumerate(known) if c != "<unk>" or n == 0 or known[n - 1] != c]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("\tab\n \u3000c", "ab c"),
        ("a\u200bb", "ab"),
        ("cﬀ\uff21", "caba"),
        ("e\u0301", "é"),
        ("ae\u0301\u0323c", "abc"),
        ("ae\u0301\u0301", "aé\u0301"),
        ("e", "e"),
    ],
)
def test_the_longest_rule_is_applied_wherever_one_begins(text: str, normal: str) -> None:
    assert OURS.encode(text) == OURS.encode(normal)


def test_spaces_are_one_before_each_word_or_as_many_as_there_are() -> None:
    assert pieces("  ab   c ") == ["▁", "ab", "▁", "c"]
    assert pieces("   ") == pieces("") == []
    every = unigram(remove_extra_whitespaces=False)
    assert pieces("  ab c ", every) == ["▁", "▁", "▁", "ab", "▁", "c", "▁"]
    assert pieces("  ", every) == ["▁", "▁"]
    assert pieces("ab", unigram(remove_extra_whitespaces=False, add_space_prefix=False)) == ["ab"]


def test_what_no_token_spells_is_one_unknown_token() -> None:
    assert pieces("axyzb") == ["▁a", "<unk>", "b"]
    assert pieces("x y") == ["▁", "<unk>", "▁", "<unk>"]


def test_special_tokens_stand_apart() -> None:
    assert OURS.encode("a</s>b") == [IDS["▁a"], 1, IDS["▁"], IDS["b"], 1]
    assert pieces("a<extra>b") == ["▁a", "<extra>", "▁", "b"]
    assert "<s>" not in [
        OURS.token_text(id) for id in OURS.encode("<s>", add_special=False, parse_special=False)
    ]


def test_a_text_comes_back_without_its_first_space() -> None:
    assert OURS.decode(OURS.encode("ab c a")) == "ab c a"


def test_a_vocabulary_without_rules_leaves_texts_as_they_are() -> None:
    assert pieces("\uff21", unigram(precompiled_charsmap=np.zeros(0, np.uint8))) == ["▁", "<unk>"]


WHOLE = charsmap(RULES)


@pytest.mark.parametrize(
    "rules",
    [
        WHOLE[:3],
        WHOLE[:8],
        np.full(300, 255, np.uint8),
        np.concatenate([np.array([2, 0, 0, 0], np.uint8), WHOLE]),
    ],
)
def test_rules_that_are_none_are_refused(rules: np.ndarray) -> None:
    with pytest.raises(ModelFileError, match="precompiled_charsmap"):
        unigram(precompiled_charsmap=rules)


def test_a_replacement_without_an_end_is_refused() -> None:
    with pytest.raises(ModelFileError, match="a zero byte after"):
        unigram(precompiled_charsmap=WHOLE[:-1]).encode("e\u0301\u0323")


@PROPERTY
@given(st.binary(max_size=40), st.integers(0, 2000), st.text(max_size=20))
def test_rules_of_chance_end_in_an_answer_or_an_error(noise: bytes, at: int, text: str) -> None:
    damaged = WHOLE.copy()
    place = 4 + at % (len(damaged) - 44)
    damaged[place : place + len(noise)] = np.frombuffer(noise, np.uint8)
    with suppress(ModelFileError):
        tokenizer = unigram(precompiled_charsmap=damaged)
        ids = tokenizer.encode(text + "e\u0301\u0323\uff21\t")
        assert all(0 <= id < tokenizer.vocabulary_size for id in ids)


@pytest.mark.parametrize(
    ("unit", "normal"), [("a", "a"), ("ab ", "ab "), ("e\u0301", "\u00e9"), (" ", " "), ("\uff21\t", "a ")]
)
def test_a_long_text_comes_back_too(unit: str, normal: str) -> None:
    assert OURS.decode(OURS.encode(unit * 20_000)) == (normal * 20_000).strip()
