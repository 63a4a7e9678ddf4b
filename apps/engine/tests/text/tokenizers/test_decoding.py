"""Decoding one by one: the same text as all at once, and never half a character."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import PIECES, PROPERTY, byte_pairs, sentencepiece, trained, wordpiece

from backbay_engine.text.tokenizers import tokenizer_from_gguf

TOKENIZERS = [
    tokenizer_from_gguf(config) for config in (byte_pairs(trained()), sentencepiece(PIECES), wordpiece())
]
IDS = st.lists(st.integers(0, 10**6), max_size=30)


@PROPERTY
@given(st.sampled_from(TOKENIZERS), IDS, st.booleans(), st.booleans())
def test_a_stream_gives_what_decoding_gives(tokenizer, numbers, special, continues) -> None:
    ids = [number % tokenizer.vocabulary_size for number in numbers]
    stream = tokenizer.stream(special=special, continues=continues)
    pieces = [*map(stream.push, ids), stream.finish()]
    whole = b"".join(tokenizer.token_bytes(id, special=special) for id in ids)
    if not continues and tokenizer.kind != "gpt2":
        whole = whole.removeprefix(b" ")
    assert "".join(pieces) == whole.decode("utf-8", "replace")
    assert tokenizer.decode(ids, special=special, continues=continues) == "".join(pieces)


@PROPERTY
@given(st.text(max_size=30))
def test_what_a_stream_gives_is_whole_characters_of_the_text(text: str) -> None:
    tokenizer = TOKENIZERS[0]
    stream, given_so_far = tokenizer.stream(), ""
    for id in tokenizer.encode(text):
        given_so_far += stream.push(id)
        assert text.startswith(given_so_far)
    assert given_so_far + stream.finish() == text


def test_bytes_wait_for_those_that_complete_the_character() -> None:
    tokenizer = TOKENIZERS[1]
    stream = tokenizer.stream()
    assert [stream.push(3 + byte) for byte in "\U0001f600".encode()] == ["", "", "", "\U0001f600"]
    assert stream.push(3 + 0xF0) == ""
    assert stream.finish() == "\ufffd"


def test_bytes_that_can_become_no_character_are_replaced_at_once() -> None:
    stream = TOKENIZERS[1].stream()
    assert stream.push(3 + 0xF0) == ""
    assert stream.push(3 + ord("a")) == "\ufffda"
