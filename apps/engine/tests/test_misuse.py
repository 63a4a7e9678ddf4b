"""Wrong calls, and calls at a bad time: an error names the mistake, and the model keeps working."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import stored
from patience import wait_until
from small_llama import EOS, write_small_llama

from backbay import BackbayError, ClosedError, OptionError
from backbay_engine import LLM, RequestError, load

ENDLESS: dict[str, Any] = {"temperature": 0, "num_keep": 0, "logit_bias": {EOS: float("-inf")}}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with load(path, "cpu_ref", context=64, parallel=2, num_threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def bert() -> Iterator[LLM]:
    with load(stored("bert-mean"), "cpu_ref", num_threads=1, batch=32) as opened:
        yield opened


def is_idle(llm: LLM) -> bool:
    """Whether nothing runs, once the cancelled requests have ended."""
    llm.forget()
    return llm.cache is not None and llm.cache.used == 0


# -- wrong values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "error", "told"),
    [
        (5, RequestError, "stop must be a string or several, got 5"),
        (b"x", RequestError, "stop must be a string or several, got b'x'"),
        ([5], RequestError, r"stop must be a string or several, got \[5\]"),
        ("", OptionError, "a stop string must not be empty"),
        (["a", ""], OptionError, "a stop string must not be empty"),
    ],
)
def test_stops_that_are_none_are_refused(llm: LLM, stop: Any, error: type[BackbayError], told: str) -> None:
    with pytest.raises(error, match=told):
        llm.submit("x", stop=stop)


def test_nothing_to_stop_at_may_be_said_in_every_way(llm: LLM) -> None:
    for nothing in (None, (), []):
        assert len(llm.generate("x", max_tokens=2, stop=nothing, **ENDLESS).tokens) == 2


def test_a_stop_of_characters_that_tokens_part_ends_the_answer(llm: LLM) -> None:
    likely = {**ENDLESS, "logit_bias": dict.fromkeys("é".encode(), 50.0), "num_keep": None}
    whole = llm.generate("x", max_tokens=30, penalty_window=1, presence_penalty=40, **likely)
    assert "éé" in whole.text
    cut = llm.generate("x", max_tokens=30, penalty_window=1, presence_penalty=40, stop="éé", **likely)
    assert (cut.text, cut.stop) == (whole.text[: whole.text.index("éé")], "éé")


@pytest.mark.fault("a conversation has no messages, roles or contents", "RequestError")
@pytest.mark.parametrize(
    "messages",
    [
        "hello",
        [],
        None,
        5,
        ["hello"],
        [{"content": "hi"}],
        [{"role": 5, "content": "hi"}],
        HI[0],
        [*HI, None],
    ],
)
def test_conversations_that_are_none_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(RequestError, match=r'messages must be mappings such as {"role": "user"'):
        llm.chat(messages)


def test_numbers_may_be_those_of_numpy(path: Path) -> None:
    with load(path, "cpu_ref", context=np.int64(64), parallel=np.int32(2), batch=np.uint8(9)) as llm:
        options = {**ENDLESS, "num_keep": np.int8(4)}
        answer = llm.generate(np.array([1, 2]), max_tokens=np.int64(3), **options)
        assert len(answer.tokens) == 3
        assert (llm.context, llm.batch) == (64, 9)


@pytest.mark.parametrize("texts", [None, 5])
def test_texts_that_are_none_are_refused(bert: LLM, texts: Any) -> None:
    with pytest.raises(RequestError, match="texts must be a text or several, got"):
        bert.embed(texts)


def test_a_text_longer_than_a_step_says_what_to_raise(bert: LLM) -> None:
    assert bert.embed([[1] * 32]).shape[0] == 1
    with pytest.raises(RequestError, match=r"33 tokens, a step takes 32 \(batch\)"):
        bert.embed([[1] * 33])


def test_a_text_to_embed_may_be_parts(bert: LLM) -> None:
    whole, parts = bert.embed([[1, 2, 3], [[1, 2], [3]]])
    np.testing.assert_array_equal(parts, whole)
    with pytest.raises(RequestError, match="sees no pictures"):
        bert.embed([["a", b"picture"]])


def test_params_that_are_none_are_refused(path: Path) -> None:
    with pytest.raises(OptionError, match="params must be BackendParams, got 5"):
        load(path, "cpu_ref", params=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1e300},
        {"temperature": 1e-300},
        {"temperature": 1, "top_k": 10**30, "top_p": 1e-300},
        {"temperature": 1, "top_k": 0, "logit_bias": {1: 1e300, 2: -1e300}},
        {"temperature": 1, "repetition_penalty": 1e300},
        {"temperature": 1, "repetition_penalty": 1e-300, "top_k": 0},
        {"temperature": 1, "frequency_penalty": 1e300, "presence_penalty": -1e300, "penalty_window": 10**30},
        {"temperature": 1, "seed": 2**200, "logprobs": 10**9},
    ],
)
def test_extreme_options_of_the_sampler_give_tokens(llm: LLM, options: dict[str, Any]) -> None:
    assert len(llm.generate("x", max_tokens=4, **{"logit_bias": {EOS: -1e30}, **options}).tokens) >= 1


@pytest.mark.parametrize("options", [{"temperature": 10**400}, {"logit_bias": {1: 10**400}}])
def test_numbers_beyond_all_floats_are_refused(llm: LLM, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="must be a"):
        llm.submit("x", **options)


# -- streams ---------------------------------------------------------------------------------------------


def test_a_stream_that_nobody_began_is_not_computed(llm: LLM) -> None:
    llm.stream("x", max_tokens=10**9, **ENDLESS)
    assert is_idle(llm)


@pytest.mark.fault("a stream is left half way", "its request is cancelled")
def test_a_stream_that_is_dropped_half_way_is_not_computed(llm: LLM) -> None:
    pieces = llm.stream("x", max_tokens=10**9, **ENDLESS)
    assert next(pieces)
    del pieces
    assert is_idle(llm)


def test_a_stream_that_is_closed_gives_no_more(llm: LLM) -> None:
    pieces = llm.stream("x", max_tokens=10**9, **ENDLESS)
    next(pieces)
    pieces.close()
    assert list(pieces) == []
    assert is_idle(llm)


def test_an_error_within_the_loop_ends_the_request(llm: LLM) -> None:
    def fail() -> None:
        for _ in llm.stream("x", max_tokens=10**9, **ENDLESS):
            raise ValueError("of the caller")

    with pytest.raises(ValueError, match="of the caller"):
        fail()
    gc.collect()
    assert is_idle(llm)


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """As on a terminal: a shell starts background processes with the signal ignored."""
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.mark.fault(
    "Ctrl-C while an answer is waited for", "KeyboardInterrupt; the request ends, the model serves on"
)
@pytest.mark.usefixtures("ctrl_c_interrupts")
@pytest.mark.parametrize(
    "wait",
    [
        lambda llm: llm.generate("x", max_tokens=10**9, **ENDLESS),
        lambda llm: list(llm.stream("x", max_tokens=10**9, **ENDLESS)),
        lambda llm: llm.chat(HI, max_tokens=10**9, **ENDLESS),
    ],
)
def test_ctrl_c_ends_the_request_and_leaves_the_model(llm: LLM, wait: Callable[[LLM], object]) -> None:
    me = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: any(slot.busy and slot.tokens > 40 for slot in llm.state().slots))
        signal.pthread_kill(me, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)

    def interrupted() -> None:
        interrupting.start()
        wait(llm)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    interrupting.join()
    gc.collect()
    assert is_idle(llm)
    assert llm.generate("after", max_tokens=1).tokens


# -- threads ---------------------------------------------------------------------------------------------


def test_one_stream_may_be_read_by_several_threads(llm: LLM) -> None:
    expected = llm.generate("shared", max_tokens=40, **ENDLESS).text
    handle = llm.submit("shared", max_tokens=40, **ENDLESS)
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(handle)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted("".join(found)) == sorted(expected)


def until_it_fails(use: Callable[[], object], ended: list[BaseException]) -> threading.Thread:
    """A thread that uses a model until an error, and keeps the error."""

    def run() -> None:
        try:
            while True:
                use()
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.fault("a model is closed while requests run", "ClosedError in each request")
@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_closing_while_others_use_the_model_tells_them(path: Path, tokens: int) -> None:
    llm = load(path, "cpu_ref", context=64, parallel=2, num_threads=1)
    ended: list[BaseException] = []
    uses = (
        lambda: llm.generate([1, 2], max_tokens=5, **ENDLESS),
        lambda: llm.logits([1, 2, 3]),
        lambda: llm.memory(),
    )
    threads = [until_it_fails(use, ended) for use in uses]
    llm.generate([5], max_tokens=tokens)
    llm.close()
    for thread in threads:
        thread.join(300)
    assert [type(error) for error in ended] == [ClosedError] * 3


def test_closing_while_texts_are_embedded_tells_who_asked() -> None:
    llm = load(stored("bert-mean"), "cpu_ref", num_threads=1)
    ended: list[BaseException] = []
    threads = [until_it_fails(lambda: llm.embed([[1, 2, 3], [4]]), ended) for _ in range(2)]
    llm.embed([[5]])
    llm.close()
    for thread in threads:
        thread.join(300)
    assert [type(error) for error in ended] == [ClosedError] * 2


# -- after the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda llm: llm.generate("x"),
        lambda llm: llm.stream("x"),
        lambda llm: llm.chat(HI),
        lambda llm: llm.chat_prompt(HI),
        lambda llm: llm.submit("x"),
        lambda llm: llm.logits("x"),
        lambda llm: llm.embed("x"),
        lambda llm: llm.memory(),
        lambda llm: llm.forget(),
        lambda llm: llm.__enter__(),
    ],
)
def test_a_closed_model_says_that_it_is_closed(path: Path, use: Callable[[LLM], object]) -> None:
    llm = load(path, "cpu_ref", context=64)
    llm.close()
    with pytest.raises(ClosedError, match="the model is closed"):
        use(llm)
    llm.close()


@pytest.mark.fault("an option of a request is misspelled", "RequestError naming the nearest option")
@pytest.mark.parametrize(
    ("name", "told"),
    [("temprature", "; nearest: 'temperature'"), ("max_token", "; nearest: 'max_tokens'"), ("zzz", "")],
)
def test_an_unknown_option_is_named_with_its_nearest(llm: LLM, name: str, told: str) -> None:
    for call in (llm.generate, llm.submit, llm.stream):
        with pytest.raises(RequestError, match=f"^unknown option '{name}'{told}"):
            call("sum", **{name: 1})


def test_a_list_of_texts_is_no_prompt(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"a list of texts is several prompts: call submit for each"):
        llm.generate(["a", "b"])


def test_a_model_tells_what_it_is_and_the_text_of_ids(llm: LLM) -> None:
    assert repr(llm) == f"LLM(llama, text, context {llm.context})"
    assert llm.decode(llm.encode("abc")) == "abc"
    with pytest.raises(RequestError, match="decode takes token ids"):
        llm.decode("abc")  # type: ignore[arg-type]
