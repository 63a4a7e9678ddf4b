"""Byte-level vocabularies: compared with the library that made one, and by general properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_vocabularies import BYTE, CORPUS, NORMAL, PROPERTY, byte_pairs, metadata, trained, with_keys
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from backbay import ModelFileError
from backbay_engine.errors import TokenizerError
from backbay_engine.media.prompts import prompt_tokens
from backbay_engine.text.tokenizers import Tokenizer, tokenizer_from_gguf
from backbay_engine.text.tokenizers.pretokenizers import PRETOKENIZERS

JUDGE = trained()
DIFFERENT = {value: name for name, value in PRETOKENIZERS.items()}  # one name of each way
OURS = tokenizer_from_gguf(byte_pairs(JUDGE))
TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(CORPUS.split(" ")), max_size=12).map(" ".join)


@PROPERTY
@given(TEXTS)
def test_a_text_has_the_tokens_that_the_library_gave_the_vocabulary(text: str) -> None:
    expected = JUDGE.encode(text, add_special_tokens=False).ids
    assert OURS.encode(text, add_special=False) == expected


@pytest.mark.parametrize("pre", sorted(DIFFERENT.values()))
def test_decoding_gives_the_text_back_however_it_was_cut(pre: str) -> None:
    tokenizer = tokenizer_from_gguf(byte_pairs(JUDGE, pre))
    texts = [
        CORPUS,
        "a  1234567 b\r\n\r\n  c'LL 12\u0661345 \u3000x\u2003\u2003y",
        "\0\x85\ufffd\U0010ffff",
        " ",
        "",
    ]
    if PRETOKENIZERS[pre].byte_level:
        assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


@PROPERTY
@given(st.text(max_size=40), st.booleans(), st.booleans())
def test_decoding_what_was_encoded_gives_the_text_back(
    text: str, add_special: bool, parse_special: bool
) -> None:
    ids = OURS.encode(text, add_special=add_special, parse_special=parse_special)
    assert OURS.decode(ids, special=parse_special and not add_special) == text


def _words(pre: str, text: str) -> list[str]:
    cut = Sequence([Split(Regex(each), "isolated") for each in PRETOKENIZERS[pre].regexes()])
    return [word for word, _ in cut.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "it's  1234 x", ["it", "'s", " ", " 1234", " x"]),
        ("llama-bpe", "IT'S 12345\n\n x", ["IT", "'S", " ", "123", "45", "\n\n", " x"]),
        ("qwen2", "ab12", ["ab", "1", "2"]),
        ("tekken", "helloWorld ABCdef", ["hello", "World", " ABCdef"]),
        ("gpt-4o", "don't path//\n", ["don't", " path", "//\n"]),
        ("superbpe", "1234567 12", ["1", "234", "567", " ", "12"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("afmoe", "ab 12345", ["ab", " ", "12", "345"]),
        ("afmoe", "x123456y", ["x", "123", "456", "y"]),
        ("kimi-k2", "\u4f60\u597dabc", ["\u4f60\u597d", "abc"]),
        ("deepseek-llm", "a !b  ", ["a", " !", "b", "  "]),
        ("gemma4", "a\n\nb", ["a", "\n\n", "b"]),
        ("viking", "ab12.", ["ab", "1", "2", "."]),
    ],
)
def test_a_name_cuts_as_llama_cpp_cuts(pre: str, text: str, words: list[str]) -> None:
    assert _words(pre, text) == words


@pytest.mark.parametrize("pre", sorted(DIFFERENT.values()))
@pytest.mark.few(9)
def test_no_text_of_one_kind_takes_long_to_cut(pre: str) -> None:
    """A pattern that searches from each place to the end would take minutes."""
    for unit in ["a", "A", " ", "\n", "1", "'", "\u4f60", "a ", "1a", "\u0301", "!"]:
        text = unit * 20_000
        assert "".join(_words(pre, text)) == text


def test_special_tokens_are_found_in_texts_only_where_that_is_asked() -> None:
    count = OURS.vocabulary_size
    assert OURS.encode("<s>a<|im_end|>", add_special=False)[0] == count - 3
    assert OURS.encode("<s>a<|im_end|>", add_special=False)[-1] == count - 1
    plain = OURS.encode("<s>a<|im_end|>", add_special=False, parse_special=False)
    assert not OURS.control_ids & set(plain)
    assert OURS.decode(plain) == "<s>a<|im_end|>"


def test_the_longest_special_token_is_taken_first_wherever_it_stands() -> None:
    tokens = [*"abcde", "abc", "bcde"]
    tokenizer = tokenizer_from_gguf(metadata("gpt2", tokens, [NORMAL] * 5 + [4, 4], pre="gpt-2", merges=[]))
    assert tokenizer.encode("abcde", add_special=False) == [0, 6]


def test_beginning_and_end_are_added_as_the_file_says() -> None:
    both = tokenizer_from_gguf(byte_pairs(JUDGE, add_bos_token=True, add_eos_token=True))
    assert both.encode("") == [both.bos, both.eos]
    assert both.encode("", add_special=False) == []
    assert OURS.encode("") == []
    assert tokenizer_from_gguf(byte_pairs(JUDGE, "llama-bpe")).encode("") == [OURS.bos]


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_texts_that_meet_in_a_prompt_are_one_text(bos: bool, eos: bool) -> None:
    tokenizer = tokenizer_from_gguf(byte_pairs(JUDGE, add_bos_token=bos, add_eos_token=eos))
    assert prompt_tokens(["ab", "cd"], tokenizer, begins=True) == tokenizer.encode("abcd")
    assert prompt_tokens(["ab", "cd"], tokenizer, begins=False) == tokenizer.encode("abcd", add_special=False)
    before, after = tokenizer.around
    assert (len(before), len(after)) == (bos, eos)
    assert prompt_tokens([[5], "cd"], tokenizer, begins=True)[-1:] == (after or tokenizer.encode("d")[-1:])
    assert prompt_tokens(["ab", [5]], tokenizer, begins=True)[-1] == 5
    assert prompt_tokens([[5], [6]], tokenizer, begins=True) == [5, 6]


def test_a_word_that_is_a_token_needs_no_merges_where_the_name_says_so() -> None:
    tokens = [*"abc", "abc"]
    for pre, ids in (("llama-bpe", [3]), ("gpt-2", [0, 1, 2])):
        tokenizer = tokenizer_from_gguf(metadata("gpt2", tokens, pre=pre, merges=[]))
        assert tokenizer.encode("abc", add_special=False) == ids


def test_a_byte_that_no_token_spells_is_left_out_and_parts_its_neighbours() -> None:
    tokens = ["a", "\u0120", "\u0120\u0120"]
    tokenizer = tokenizer_from_gguf(metadata("gpt2", tokens, pre="gpt-2", merges=["\u0120 \u0120"]))
    assert tokenizer.encode("a  \x0b  a", add_special=False) == [0, 2, 1, 1, 0]
    assert tokenizer.encode(" \x0b a", add_special=False) == [1, 1, 0]


def test_merges_that_make_no_token_and_tokens_that_are_no_text_do_no_harm() -> None:
    tokens = ["a", "b", "ab", "\udcff"]
    merges = ["a x", "nonsense", "", " a", "b a", "a b", "a b"]
    tokenizer = tokenizer_from_gguf(metadata("gpt2", tokens, pre="gpt-2", merges=merges))
    assert tokenizer.encode("abab", add_special=False) == [2, 2]
    assert tokenizer.token_text(3) == "\ufffd"
    assert tokenizer.token_bytes(3) == b"\xff"


def test_vocabularies_of_raw_text_spell_spaces_and_fall_back_to_bytes() -> None:
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*"ab\u2581\n", "\u2581a", "\n\n", *bytes_]
    config = metadata("gemma4", tokens, [NORMAL] * 6 + [BYTE] * 256, merges=["\u2581 a"], bos_token_id=0)
    tokenizer = tokenizer_from_gguf(config)
    ids = tokenizer.encode("b a\n\nb\u00e9", add_special=False)
    assert ids == [1, 4, 5, 1, 6 + 0xC3, 6 + 0xA9]
    assert tokenizer.decode(ids) == "b a\n\nb\u00e9"
    assert tokenizer.add_bos  # whatever the file says


def test_the_first_of_two_equal_merges_counts() -> None:
    tokens = [*"abc", "ab", "bc"]
    tokenizer = tokenizer_from_gguf(metadata("gpt2", tokens, pre="gpt-2", merges=["b c", "a b", "b c"]))
    assert tokenizer.encode("abc", add_special=False) == [0, 4]


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(
        ModelFileError, match=r"a known pre-tokenizer.*'llama-bpe'.*found the string 'lama-bpe'"
    ):
        tokenizer_from_gguf(byte_pairs(JUDGE, "lama-bpe"))


@pytest.mark.parametrize("kind", ["rwkv", "plamo2", "none", "gpt3"])
def test_an_unknown_kind_is_told_with_those_there_are(kind: str) -> None:
    with pytest.raises(ModelFileError, match=f"gpt2.*llama.*bert.*{kind}"):
        tokenizer_from_gguf(metadata(kind, ["a"]))


def test_ids_and_texts_that_are_none_are_refused() -> None:
    for bad in (-1, OURS.vocabulary_size):
        with pytest.raises(TokenizerError, match=f"token {bad} is not in the vocabulary"):
            OURS.decode([bad])
    with pytest.raises(TokenizerError, match="position 2"):
        OURS.encode("ab\ud800")
    with pytest.raises(
        TokenizerError, match="the byte 0xff at position 2 is not UTF-8; give the text in UTF-8"
    ):
        OURS.encode(b"ab\xff".decode(errors="surrogateescape"))
    with pytest.raises(TokenizerError, match="must be a string, got bytes"):
        OURS.encode(b"ab")


def test_a_list_that_is_too_short_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"each of the 3 tokens in 'tokenizer.ggml.token_type'"):
        tokenizer_from_gguf(metadata("gpt2", ["a", "b", "c"], [1, 1], merges=[]))


def test_templates_are_found_by_name() -> None:
    config = with_keys(
        byte_pairs(JUDGE), tokenizer__chat_template="main", tokenizer__chat_template__tool_use="tools"
    )
    tokenizer = tokenizer_from_gguf(config)
    assert tokenizer.chat_template == "main"
    assert dict(tokenizer.chat_templates) == {"tool_use": "tools"}
    assert OURS.chat_template is None


def test_a_long_text_has_the_tokens_of_its_parts() -> None:
    assert OURS.encode(CORPUS * 100) == OURS.encode(CORPUS) * 100


def test_threads_share_one_tokenizer() -> None:
    from concurrent.futures import ThreadPoolExecutor

    fresh: Tokenizer = tokenizer_from_gguf(byte_pairs(JUDGE))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(fresh.encode, [CORPUS] * 32))
    assert all(answer == OURS.encode(CORPUS) for answer in answers)
