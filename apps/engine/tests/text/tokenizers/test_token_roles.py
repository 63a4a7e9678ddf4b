"""Which tokens end an answer, and which are control tokens."""

from __future__ import annotations

from text_vocabularies import CONTROL, NORMAL, USER_DEFINED, metadata

from backbay_engine.text.tokenizers import Tokenizer, tokenizer_from_gguf


def tokenizer_of(*tokens: str, kind: int = CONTROL, **more: object) -> Tokenizer:
    names = ["a", "b", *tokens]
    types = [NORMAL, NORMAL, *[kind] * len(tokens)]
    return tokenizer_from_gguf(metadata("gpt2", names, types, pre="gpt-2", merges=[], **more))


def ends(tokenizer: Tokenizer) -> set[str]:
    return {tokenizer.token_text(id) for id in tokenizer.end_ids}


def test_the_end_is_known_by_the_file_and_by_name() -> None:
    tokenizer = tokenizer_of("<|im_end|>", "<|endoftext|>", "<|other|>", eos_token_id=1)
    assert ends(tokenizer) == {"b", "<|im_end|>", "<|endoftext|>"}
    assert (tokenizer.eos, tokenizer.eot) == (1, 2)


def test_a_token_that_ends_is_a_control_token_whatever_the_file_calls_it() -> None:
    tokenizer = tokenizer_of("<|eot_id|>", kind=NORMAL)
    assert tokenizer.control_ids == {2}
    assert tokenizer.decode([0, 2]) == "a"


def test_harmony_ends_at_return_and_call_and_not_at_the_end_of_a_message() -> None:
    tokenizer = tokenizer_of("<|return|>", "<|call|>", "<|end|>", "<|channel|>", eos_token_id=2)
    assert ends(tokenizer) == {"<|return|>", "<|call|>"}
    assert tokenizer.decode([0, 5, 4]) == "a<|channel|><|end|>"


def test_a_normal_token_that_looks_like_an_end_is_none_beside_gemma4s() -> None:
    tokenizer = tokenizer_of("</s>", "<|tool_response>", "<eos>")
    assert ends(tokenizer) == {"<|tool_response>", "<eos>"}
    assert tokenizer.decode([2]) == "</s>"


def test_padding_of_code_models_ends_too() -> None:
    assert ends(tokenizer_of("<fim_pad>", "<|file_sep|>", "<|repo_name|>")) == {
        "<fim_pad>",
        "<|file_sep|>",
        "<|repo_name|>",
    }


def test_user_defined_tokens_are_found_and_shown_even_in_plain_text() -> None:
    tokenizer = tokenizer_of("<think>", kind=USER_DEFINED)
    assert tokenizer.encode("a<think>b", add_special=False, parse_special=False) == [0, 2, 1]
    assert tokenizer.decode([0, 2, 1]) == "a<think>b"


def test_a_special_token_outside_the_vocabulary_is_none() -> None:
    tokenizer = tokenizer_of(bos_token_id=99, eos_token_id=1)
    assert (tokenizer.bos, tokenizer.eos, tokenizer.unk) == (None, 1, None)


def test_tokens_never_to_choose_are_told() -> None:
    assert tokenizer_of(suppress_tokens=[1, 0, 77, -1]).suppressed_ids == (1, 0)
    assert tokenizer_of().suppressed_ids == ()


def test_a_type_that_is_not_known_makes_a_token_that_writes_nothing() -> None:
    assert tokenizer_of("x", kind=77).decode([0, 2, 1]) == "ab"
