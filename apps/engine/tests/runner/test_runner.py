"""Requests that share steps: each gets the same answer as alone, whatever happens to the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llama import BOS, EOS, SUPPRESSED, write_small_llama

import backbay
from backbay import ClosedError, OptionError
from backbay_engine import LLM, Handle, LogitsError, RequestError, load
from backbay_engine.runner.requests.prompt_jobs import LogitsJob
from backbay_engine.runner.slots import Slot

ENDLESS = {"logit_bias": {EOS: float("-inf")}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module", params=sorted(backbay.backends()))
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(path, request.param, context=64, parallel=3, batch=16, num_threads=1) as opened:
        yield opened


def test_a_prompt_is_continued_the_same_way_each_time(llm: LLM) -> None:
    first = llm.generate("hello", max_tokens=8, temperature=0, **ENDLESS)
    again = llm.generate("hello", max_tokens=8, temperature=0, **ENDLESS)
    assert first.tokens == again.tokens
    assert len(first.tokens) == 8
    assert first.finish_reason == "length"
    assert again.timings.reused_tokens == len("hello")  # bos and all but the last


def test_the_likeliest_token_is_that_of_the_logits(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("what")
    answer = llm.generate(prompt, max_tokens=4, temperature=0, **ENDLESS)
    scores = llm.logits(prompt + answer.tokens)
    scores[:, EOS] = -np.inf
    assert scores.argmax(axis=1)[len(prompt) - 1 : -1].tolist() == answer.tokens


def test_a_prompt_longer_than_a_step_goes_through_in_parts(llm: LLM) -> None:
    prompt = np.random.default_rng(1).integers(0, 256, 50).tolist()
    whole = llm.logits(prompt)
    assert whole.shape == (50, 261)
    parts = np.concatenate([llm.logits(prompt[:20]), llm.logits(prompt)[20:]])
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=1e-3)


def test_many_at_once_get_what_each_gets_alone(llm: LLM) -> None:
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 256, n).tolist() for n in (1, 17, 40, 3, 29, 8)]
    alone = [llm.generate(p, max_tokens=9, temperature=0, reuse=False).tokens for p in prompts]
    handles = [llm.submit(p, max_tokens=9, temperature=0) for p in prompts]
    assert [handle.result().tokens for handle in handles] == alone


def test_chance_is_the_seeds_whoever_else_runs(llm: LLM) -> None:
    options = {"max_tokens": 10, "temperature": 1.0, "seed": 11}
    alone = llm.generate("dice", **options)
    others = [llm.submit(text, max_tokens=12, temperature=1.0) for text in ("a", "another")]
    assert llm.generate("dice", **options).tokens == alone.tokens
    for other in others:
        other.result()


def test_a_common_beginning_is_taken_from_another_sequence(llm: LLM) -> None:
    llm.forget()
    opening = np.random.default_rng(3).integers(0, 256, 30).tolist()
    expected = llm.generate([*opening, 65, 66], max_tokens=5, temperature=0, reuse=False).tokens
    llm.generate([*opening, 67, 68, 69], max_tokens=5, temperature=0)
    found = llm.generate([*opening, 65, 66], max_tokens=5, temperature=0)
    assert found.timings.reused_tokens >= 30
    assert found.tokens == expected


def test_a_full_context_ends_the_answer(llm: LLM) -> None:
    answer = llm.generate([1, 2, 3], temperature=0, **ENDLESS)
    assert answer.finish_reason == "length"
    assert 3 + len(answer.tokens) == llm.context + 1  # the last one needs no cell


def test_a_full_context_is_shifted_where_that_is_asked_for(llm: LLM) -> None:
    answer = llm.generate([1, 2, 3], temperature=0, max_tokens=150, num_keep=2, **ENDLESS)
    assert answer.finish_reason == "length"
    assert len(answer.tokens) == 150


def test_what_a_shift_left_behind_is_not_taken_for_the_same_prompt(llm: LLM) -> None:
    opening = np.random.default_rng(5).integers(0, 256, 60).tolist()
    options = {"temperature": 0, **ENDLESS}
    shifted = llm.generate(opening, max_tokens=10, num_keep=4, **options)
    told = [*opening, *shifted.tokens]
    prompt = [*told[:4], *told[34:66]]  # what the sequence holds: the older half of what followed is gone
    alone = llm.generate(prompt, max_tokens=8, reuse=False, **options)
    llm.forget()
    llm.generate(opening, max_tokens=10, num_keep=4, **options)
    again = llm.generate(prompt, max_tokens=8, **options)
    assert again.timings.reused_tokens <= 4
    assert again.tokens == alone.tokens


def test_text_comes_in_pieces_that_make_up_the_whole(llm: LLM) -> None:
    whole = llm.generate("stream", max_tokens=20, temperature=0)
    assert "".join(llm.stream("stream", max_tokens=20, temperature=0)) == whole.text


def test_a_stop_string_is_cut_off_wherever_tokens_part_it(llm: LLM) -> None:
    whole = llm.generate("stop", max_tokens=20, temperature=0, **ENDLESS)
    stop = whole.text[5:8]
    answer = llm.generate("stop", max_tokens=20, temperature=0, stop=stop, **ENDLESS)
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert (answer.finish_reason, answer.stop) == ("stop", stop)


def test_the_end_token_ends_and_is_not_shown(llm: LLM) -> None:
    answer = llm.generate("end", max_tokens=5, temperature=0, logit_bias={EOS: 1000.0})
    assert (answer.text, answer.finish_reason, answer.tokens) == ("", "stop", [EOS])


def test_a_token_that_the_file_suppresses_is_never_generated(llm: LLM) -> None:
    answer = llm.generate("x", max_tokens=1, temperature=0, logit_bias={SUPPRESSED: 1000.0, 9: 500.0})
    assert answer.tokens == [9]


def test_logprobs_come_with_each_token(llm: LLM) -> None:
    answer = llm.generate("odds", max_tokens=3, temperature=0, logprobs=2)
    assert answer.logprobs is not None
    assert [one.token for one in answer.logprobs] == answer.tokens
    assert all(one.top[0].logprob >= one.top[1].logprob for one in answer.logprobs)


def test_a_cancelled_request_gives_what_there_is(llm: LLM) -> None:
    handle = llm.submit("cancel", max_tokens=10_000, num_keep=0, temperature=0, **ENDLESS)
    next(iter(handle))
    handle.cancel()
    answer = handle.result(timeout=300)
    assert answer.finish_reason == "cancelled"
    assert answer.tokens


@pytest.mark.parametrize("timeout", [float("nan"), "1", b"1", []])
def test_a_timeout_is_a_number_of_seconds(llm: LLM, timeout: Any) -> None:
    handle = llm.submit("timeout", max_tokens=1)
    with pytest.raises(OptionError, match="timeout must be a number of seconds or None"):
        handle.result(timeout)
    for longest in (float("inf"), 1e300, np.float32(100), None):
        assert handle.result(longest).tokens
    with pytest.raises(TimeoutError):
        Handle(lambda: None).result(0)


def test_leaving_a_stream_cancels_it(llm: LLM) -> None:
    for _ in llm.stream("leave", max_tokens=10_000, num_keep=0, temperature=0, **ENDLESS):
        break
    llm.forget()  # waits until nothing runs
    assert llm.cache is not None
    assert llm.cache.used == 0


@pytest.mark.fault("one of several requests fails", "the error in its request; the others get their answers")
def test_one_that_fails_leaves_the_others_alone(llm: LLM) -> None:
    alone = llm.generate("fine", max_tokens=12, temperature=0).tokens
    nothing = dict.fromkeys(range(261), float("-inf"))
    good = llm.submit("fine", max_tokens=12, temperature=0)
    bad = llm.submit("bad", max_tokens=12, logit_bias=nothing)
    with pytest.raises(LogitsError):
        bad.result()
    assert good.result().tokens == alone


@pytest.mark.parametrize(
    ("prompt", "options", "told"),
    [
        ([], {}, "empty"),
        ("", {}, "empty"),
        (5, {}, "a text, token ids, or parts, got 5"),
        (b"ab", {}, "a text, token ids, or parts, got b'ab'"),
        ([1.5], {}, r"a text, token ids, or parts, got \[1.5\]"),
        (["a", [1.5]], {}, r"a text, token ids, or parts, got \[1.5\]"),
        (["a", 1], {}, "must be in a list, got 1 alone"),
        (["a", b"picture"], {}, r"\(llama\) sees no pictures"),
        (["a", None], {}, "an image must be a path"),
        ([{"role": "user", "content": "a"}], {}, "give messages to chat"),
        ([[], ""], {}, "empty"),
        (["a", [261]], {}, r"\[0, 261\), got 261"),
        (["a" * 40, [98] * 40], {}, "tokens, the context holds 64"),
        ([261], {}, r"\[0, 261\), got 261"),
        ([-1], {}, "got -1"),
        ([1] * 65, {}, "65 tokens, the context holds 64"),
        ([1], {"max_tokens": 0}, "max_tokens must be an integer of at least 1, got 0"),
        ([1], {"num_keep": 64}, r"num_keep must be an integer in \[0, 62\], got 64"),
        ([1], {"num_keep": "2"}, r"num_keep must be an integer in \[0, 62\], got '2'"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(llm: LLM, prompt: Any, options: dict, told: str) -> None:
    with pytest.raises(RequestError, match=told):
        llm.submit(prompt, **options)
    assert llm.generate("after", max_tokens=1).tokens  # nothing was lost


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["a ", [98]], "a b"),
        ([[97, 98], [99]], [97, 98, 99]),
        (([BOS, 97], "b"), "ab"),
        (["a", np.array([98, 99])], "abc"),
    ],
)
def test_a_prompt_of_parts_is_their_tokens_in_a_row(llm: LLM, parts: Any, whole: Any) -> None:
    tokens = llm.encode(whole)
    assert llm.encode(parts) == tokens
    assert llm.generate(parts, max_tokens=4, temperature=0).tokens == (
        llm.generate(whole, max_tokens=4, temperature=0).tokens
    )
    assert llm.logits(parts).shape == (len(tokens), 261)
    assert [each.token for each in llm.score_tokens(parts)] == tokens


def test_a_misspelled_option_is_refused(llm: LLM) -> None:
    with pytest.raises(TypeError, match="temprature"):
        llm.submit("x", temprature=1)
    with pytest.raises(OptionError, match="temperature"):
        llm.submit("x", temperature=-1)


def test_a_conversation_is_laid_out_by_the_models_template(llm: LLM) -> None:
    ids = llm.chat_prompt([{"role": "user", "content": "hi"}])
    assert ids == [257, 259, *b"hi", 260]
    assert llm.chat([{"role": "user", "content": "hi"}], max_tokens=3).tokens


def test_a_decode_step_traces_compiles_and_allocates_nothing(llm: LLM) -> None:
    llm.generate("count", max_tokens=4, temperature=0, **ENDLESS)
    before = llm.backend.counters
    llm.generate("count", max_tokens=40, temperature=0, **ENDLESS)
    after = llm.backend.counters
    assert after.runs - before.runs >= 40
    assert after.traced_nodes == before.traced_nodes
    assert after.compilations == before.compilations
    assert after.bytes_allocated == before.bytes_allocated


def test_threads_may_ask_at_the_same_time(llm: LLM) -> None:
    prompts = [f"thread {n}" for n in range(6)]
    alone = [llm.generate(p, max_tokens=6, temperature=0).tokens for p in prompts]
    found: dict[int, list[int]] = {}

    def ask(n: int) -> None:
        found[n] = llm.generate(prompts[n], max_tokens=6, temperature=0).tokens

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(6)] == alone


@pytest.mark.fault("a weight holds NaN", "LogitsError naming the first layer that is not finite")
def test_nan_is_named_with_the_layer_that_it_comes_from(tmp_path: Path) -> None:
    broken = write_small_llama(tmp_path / "broken.gguf", layers=3, broken_layer=1)
    with load(broken, "cpu_ref", context=64) as llm, pytest.raises(LogitsError, match=r"blk\.1"):
        llm.generate("hello", max_tokens=4, temperature=0)


def test_closing_ends_what_runs(path: Path) -> None:
    llm = load(path, "cpu_ref", context=64)
    running, waiting = (llm.submit("long", max_tokens=10_000, num_keep=0, **ENDLESS) for _ in range(2))
    cancelled = llm.submit("long", max_tokens=10_000)
    cancelled.cancel()
    stream = llm.stream("long", max_tokens=10_000, num_keep=0, **ENDLESS)
    next(iter(running))
    llm.close()
    for ended in (running.result, waiting.result, lambda: list(running), lambda: list(stream)):
        with pytest.raises(ClosedError, match="was closed"):
            ended()
    assert cancelled.result().finish_reason == "cancelled"
    llm.close()


def test_whoever_waits_for_a_model_that_nobody_held_is_told_so(path: Path) -> None:
    handle = load(path, "cpu_ref", context=64).submit("long", max_tokens=10_000, num_keep=0, **ENDLESS)
    with pytest.raises(ClosedError, match="nobody held it any longer"):
        handle.result(300)


def test_the_logits_of_a_broken_model_are_an_error_too(tmp_path: Path) -> None:
    broken = write_small_llama(tmp_path / "broken.gguf", layers=3, broken_layer=1)
    with (
        load(broken, "cpu_ref", context=64) as llm,
        pytest.raises(LogitsError, match=r"after token 0.*nan.*blk\.1"),
    ):
        llm.logits("hello")


def test_logits_that_are_computed_again_replace_those_of_before(llm: LLM) -> None:
    job = LogitsJob([1, 2, 3, 4])
    job.handle = handle = Handle[Any](lambda: None)
    job.start(Slot(0))
    job.move_on(2)
    job.receive(np.zeros((2, 5), np.float32))
    assert not job.over
    job.slot = Slot(0)
    job.go_back([1, 2])  # as after a failed step, where a window has let go of the beginning
    job.move_on(4)
    job.receive(np.ones((4, 5), np.float32))
    assert job.over
    job.finish()
    np.testing.assert_array_equal(handle.result(), np.ones((4, 5), np.float32))


def test_nobody_waits_to_forget_a_model_that_closes(path: Path) -> None:
    llm = load(path, "cpu_ref", context=64)
    llm.submit("long", max_tokens=10_000, num_keep=0, **ENDLESS)
    told: list[type[BaseException]] = []

    def forget() -> None:
        try:
            llm.forget()
        except ClosedError:
            told.append(ClosedError)

    thread = threading.Thread(target=forget, daemon=True)
    thread.start()
    llm.close()
    thread.join(300)
    assert told == [ClosedError]
    with pytest.raises(ClosedError):
        llm.forget()


def test_a_stream_keeps_its_model_open(path: Path) -> None:
    options = {"max_tokens": 5, "temperature": 0, **ENDLESS}
    with load(path, "cpu_ref", context=64) as llm:
        expected = llm.generate("x", **options).text
    assert "".join(load(path, "cpu_ref", context=64).stream("x", **options)) == expected
