"""Pairs of texts, as rerankers of each family were trained on them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from backbay_engine.text.rerank_pairs import pair_ids


def tokenizer(end: str, templates: dict[str, str] | None = None) -> Any:
    """A tokenizer of characters: 1 begins a text, 2 ends it."""

    def encode(text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        ids = [ord(character) for character in text]
        return [1, *ids, 2] if add_special else ids

    return SimpleNamespace(
        encode=encode, bos=1, token_text={1: "<s>", 2: end}.get, chat_templates=templates or {}
    )


def test_bert_has_one_separator_between_the_texts():
    assert pair_ids(tokenizer("[SEP]"), "a", "bc") == [1, ord("a"), 2, ord("b"), ord("c"), 2]


def test_roberta_has_two():
    assert pair_ids(tokenizer("</s>"), "a", "b") == [1, ord("a"), 2, 2, ord("b"), 2]


def test_a_template_of_the_file_goes_first_and_fills_each_place_once():
    made = tokenizer("</s>", {"rerank": "q:{query} d:{document}"})
    assert "".join(map(chr, pair_ids(made, "{document}", "b"))) == "q:{document} d:b"
