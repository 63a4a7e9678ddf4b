"""Formats over vocabularies of each kind: whatever allowed tokens are chosen, they spell an answer."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_vocabularies import PIECES, byte_pairs, sentencepiece, trained

from backbay_engine.text.formats import ConstraintMaker, ResponseFormat, response_format_of
from backbay_engine.text.sampling.constraint import mask_logits
from backbay_engine.text.tokenizers import Tokenizer, tokenizer_from_gguf

pytest.importorskip("llguidance")

PROPERTY = settings(deadline=None, max_examples=60, derandomize=True)
TOKENIZERS = {
    "sentencepiece": tokenizer_from_gguf(sentencepiece(PIECES)),
    "byte pairs": tokenizer_from_gguf(byte_pairs(trained())),
    "without an end": tokenizer_from_gguf(byte_pairs(trained())),
}
TOKENIZERS["without an end"].end_ids = frozenset()
GRAMMARS = {name: ConstraintMaker(each, each.vocabulary_size) for name, each in TOKENIZERS.items()}
CHOICES = st.lists(
    st.text(" \u2581abdehilortw=\u00fc\u00df\u4f60\U0001f600\n\"'\\{}/|\t", min_size=1, max_size=12),
    min_size=1,
    max_size=5,
)


def allowed(mask: bytes, size: int) -> list[int]:
    row = np.zeros(size, np.float32)
    mask_logits(row, mask)
    return np.flatnonzero(row == 0).tolist()


def walk(name: str, wanted: ResponseFormat | None, seed: int) -> str:
    """A text of allowed tokens, chosen at random up to the end."""
    assert wanted is not None
    tokenizer: Tokenizer = TOKENIZERS[name]
    constraint, chance, ids = GRAMMARS[name].constraint(wanted), random.Random(seed), list[int]()
    while True:
        mask = constraint.mask()
        assert mask is not None
        if not mask:
            break
        id = chance.choice(allowed(mask, tokenizer.vocabulary_size))
        constraint.accept(id)
        if id in tokenizer.end_ids:
            break
        ids.append(id)
        assert len(ids) < 200
    return tokenizer.decode(ids, continues=True)


@pytest.mark.parametrize("name", TOKENIZERS)
@PROPERTY
@given(CHOICES, st.integers(0, 9))
def test_allowed_tokens_spell_a_choice(name: str, choices: list[str], seed: int) -> None:
    if name == "without an end":  # it cannot stop where a choice could go on
        choices = choices[:1]
    assert walk(name, response_format_of(choices), seed) in choices


@pytest.mark.parametrize("name", TOKENIZERS)
@PROPERTY
@given(CHOICES)
def test_the_usual_tokens_of_a_choice_are_allowed(name: str, choices: list[str]) -> None:
    tokenizer, wanted = TOKENIZERS[name], response_format_of(choices)
    assert wanted is not None
    for choice in choices:
        ids = tokenizer.encode(choice, add_special=False, parse_special=False, continues=True)
        if tokenizer.decode(ids, continues=True) != choice:  # it changes characters
            continue
        constraint = GRAMMARS[name].constraint(wanted)
        for id in ids:
            mask = constraint.mask()
            assert mask is not None
            assert id in allowed(mask, tokenizer.vocabulary_size)
            constraint.accept(id)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_text_that_continues_another_gets_no_space(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    for text in ("hello", " hello", "{"):
        ids = tokenizer.encode(text, add_special=False, continues=True)
        assert tokenizer.decode(ids, continues=True) == text
