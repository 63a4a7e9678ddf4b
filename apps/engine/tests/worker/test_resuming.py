"""Answers that outlive their workers: each is the answer of an undisturbed run."""

import os
import signal
import threading
import time

import pytest
from constraints import Spelled
from small_llama import EOS, WORDS, write_small_llama

from backbay import BackendUnavailableError, OptionError
from backbay_engine import Completion, RequestError, TokenStep, load

ENDLESS = {"logit_bias": {EOS: float("-inf")}}
SIZES = {"context": 256, "parallel": 3, "num_threads": 1, "kv_dtype": "f32"}
KINDS = [
    {"temperature": 0, **ENDLESS},
    {"seed": 3, "temperature": 1.2, **ENDLESS},
    {"seed": 4, "logprobs": 2, "repetition_penalty": 1.3, **ENDLESS},
    {"seed": 5, "top_k": 0, "temperature": 2.0, "logit_bias": {EOS: float("-inf"), 0xE2: 5.0, 0x82: 5.0}},
    {"temperature": 0, "stop": ["\u00e9\u00e9", "zzzz", "ab"], **ENDLESS},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


def kill(llm):
    pid = llm.worker_pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.fault("a worker dies in mid-answer", "whole answers, after a pause")
def test_answers_go_on_in_the_next_worker(path):
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        alone = [llm.generate("go on", max_tokens=100, **kind) for kind in KINDS]
        told = [[] for _ in KINDS]
        handles = [
            llm.submit("go on", max_tokens=100, on_step=mine.append, **kind)
            for mine, kind in zip(told, KINDS, strict=True)
        ]
        for _ in range(2):
            time.sleep(0.15)
            kill(llm)
        for handle, mine, expected in zip(handles, told, alone, strict=True):
            found = handle.result(300)
            assert (found.text, found.tokens) == (expected.text, expected.tokens)
            assert (found.finish_reason, found.stop) == (expected.finish_reason, expected.stop)
            assert [type(each) for each in mine] == [TokenStep] * (len(mine) - 1) + [Completion]
            assert "".join(step.text for step in mine[:-1]) == found.text
            assert [token for step in mine[:-1] for token in step.tokens] == found.tokens
            assert [step.finish_reason for step in mine[:-2]] == [None] * (len(mine) - 2)
            if expected.logprobs is not None:
                assert [each.token for each in found.logprobs] == found.tokens


def test_an_answer_goes_on_wherever_its_worker_dies(path):
    options = {"max_tokens": 12, "seed": 2, "temperature": 1.0, **ENDLESS}
    forced = [*b"ab", None, None, *b"cd", None, None, None, EOS]
    with load(path, "cpu_ref", **SIZES, worker=True, retries=1) as llm:
        alone = llm.generate("x", **options)
        spelled = llm.generate("x", constraint=Spelled(forced, WORDS), max_tokens=12, seed=2)
        for cut in (0, 6):
            for more, expected in (({}, alone), ({"constraint": Spelled(forced, WORDS)}, spelled)):
                handle = llm.submit(
                    "x", **{**options, **more} if not more else {"max_tokens": 12, "seed": 2, **more}
                )
                steps = handle.steps()
                seen = [next(steps, None) for _ in range(cut)]
                kill(llm)
                seen += steps
                assert handle.result(300).tokens == expected.tokens
                assert [token for step in seen if step for token in step.tokens] == expected.tokens


def test_an_answer_without_a_seed_goes_on_with_the_same_choices(path):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=3) as llm:
        handle = llm.submit("x", max_tokens=100, temperature=1.5, **ENDLESS)
        next(handle.steps())
        kill(llm)
        assert len(handle.result(300).tokens) == 100


def test_retries_are_bounded(path):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=1) as llm:
        handle = llm.submit("x", max_tokens=10**6, num_keep=0, **ENDLESS)
        steps = handle.steps()
        for _ in range(2):
            next(steps)
            pid = llm.worker_pid
            kill(llm)
            while not handle.done and llm.worker_pid in (None, pid):
                time.sleep(0.01)
        with pytest.raises(BackendUnavailableError, match="SIGKILL"):
            handle.result(300)
        assert llm.generate("x", max_tokens=2).tokens


def test_what_was_cancelled_stays_cancelled(path):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=3) as llm:
        handle = llm.submit("x", max_tokens=10**6, num_keep=0, **ENDLESS)
        next(handle.steps())
        kill(llm)
        handle.cancel()
        assert handle.result(300).finish_reason == "cancelled"


def test_many_threads_get_their_answers_whatever_dies(path):
    with load(path, "cpu_ref", **SIZES, worker=True, retries=100) as llm:
        alone = [llm.generate(f"thread {n}", max_tokens=40, seed=n, **ENDLESS).tokens for n in range(6)]
        wrong, over = [], threading.Event()

        def ask(n):
            for _ in range(3):
                found = llm.generate(f"thread {n}", max_tokens=40, seed=n, **ENDLESS).tokens
                if found != alone[n]:
                    wrong.append((n, found))

        def die():
            for _ in range(3):
                while not (llm.state().busy or over.is_set()):
                    time.sleep(0.01)
                kill(llm)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
        killer = threading.Thread(target=die)
        for thread in (*threads, killer):
            thread.start()
        for thread in threads:
            thread.join()
        over.set()
        killer.join()
        assert wrong == []


def test_retries_need_a_worker(path):
    with pytest.raises(OptionError, match="worker=True"):
        load(path, "cpu_ref", retries=1)
    with pytest.raises(RequestError, match="retries must be an integer of at least 0"):
        load(path, "cpu_ref", worker=True, retries=-1)
