"""A model in a process of its own: the same answers, and deaths that are errors of the running requests."""

import logging
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dying_backend import VARIABLE, Dying, Slow
from model_files import stored
from patience import PATIENCE, is_running
from small_llama import CONTEXT, EOS, write_small_llama
from worker_processes import is_gone

import backbay
from backbay import (
    BackbayError,
    BackendParams,
    BackendUnavailableError,
    CancelledError,
    ClosedError,
    ModelFileError,
    NoMemoryError,
    OptionError,
    UnknownBackendError,
)
from backbay_engine import LLM, RequestError, load
from backbay_engine.port.questions import ClearCaches, GetAnswerSnapshot, GetPromptSnapshot
from backbay_engine.worker import worker_link

BACKENDS = sorted({"cpu_ref", "ggml", "onnx"} & set(backbay.backends()))
ENDLESS = {"temperature": 0, "num_keep": 0, "logit_bias": {EOS: float("-inf")}}
SIZES = {"context": 128, "parallel": 2, "num_threads": 1}
DEADLY = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGKILL")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module", params=BACKENDS)
def pair(request, path):
    """A model here, and the same model in a worker."""
    with (
        load(path, request.param, **SIZES) as here,
        load(path, request.param, **SIZES, worker=True, retries=0) as there,
    ):
        yield here, there


@pytest.fixture(scope="module")
def llm(path):
    with load(path, "cpu_ref", **SIZES, worker=True) as opened:
        yield opened


@pytest.fixture
def starts(monkeypatch):
    """The workers that were started."""
    started = []
    process = worker_link.WorkerProcess

    def noted(*args):
        started.append(process(*args))
        return started[-1]

    monkeypatch.setattr(worker_link, "WorkerProcess", noted)
    return started


def kill(llm, name="SIGKILL"):
    os.kill(llm.worker_pid, getattr(signal, name))


def kill_and_wait(llm, name):
    pid = llm.worker_pid
    if pid is not None:
        kill(llm, name)
        assert is_gone(pid)


# -- the same as without a worker ------------------------------------------------------------------------


@pytest.mark.few(2)
def test_answers_are_the_same(pair):
    here, there = pair
    assert isinstance(there, LLM)
    assert there.worker_pid not in (None, os.getpid())
    for options in (
        {"temperature": 0, "logprobs": 2},
        {"seed": 5, "temperature": 1.0},
        {"temperature": 0, "stop": ["a"]},
        {"temperature": 0, "repetition_penalty": 1.2, "logit_bias": {3: 2.0}},
    ):
        wanted = here.generate("hello", max_tokens=24, reuse=False, **options)
        found = there.generate("hello", max_tokens=24, reuse=False, **options)
        wanted.timings = found.timings = None
        assert found == wanted
    pieces = list(here.stream("hello", max_tokens=24, temperature=0))
    assert list(there.stream("hello", max_tokens=24, temperature=0)) == pieces
    chat = [{"role": "user", "content": "hi"}]
    assert there.chat_prompt(chat) == here.chat_prompt(chat)
    assert there.chat(chat, max_tokens=4, seed=1).text == here.chat(chat, max_tokens=4, seed=1).text
    np.testing.assert_array_equal(there.logits("hello"), here.logits("hello"))
    assert there.memory() == here.memory()
    assert (there.context, there.batch, there.end_ids) == (here.context, here.batch, here.end_ids)
    assert there.tokenizer.decode(there.encode("hello")) == "hello"


def test_embeddings_are_the_same():
    path = stored("bert-mean")
    with load(path, "cpu_ref", num_threads=1) as here, load(path, "cpu_ref", worker=True) as there:
        wanted = here.embed([[1, 2, 3], [4]])
        np.testing.assert_array_equal(there.embed([[1, 2, 3], [4]]), wanted)
        kill(there)
        np.testing.assert_array_equal(there.embed([[1, 2, 3], [4]]), wanted)
        with pytest.raises(RequestError, match="makes embeddings"):
            there.generate([1])


def test_large_results_come_whole(path):
    with load(path, "cpu_ref", context=4096, parallel=1, worker=True) as llm:
        streamed = llm.submit("x", max_tokens=4, **ENDLESS)
        assert llm.logits([1] * 2000).shape == (2000, llm.vocabulary_size)
        assert streamed.result(300).tokens


@pytest.mark.fault(
    "a thousand questions to a worker at once", "answers, and no thread of the worker for each"
)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the threads of another process")
def test_many_questions_need_few_threads(llm):
    def threads():
        return len(list(Path(f"/proc/{llm.worker_pid}/task").iterdir()))

    before = threads()
    running = llm.submit("x", **ENDLESS)
    handles = [llm._port.begin(ClearCaches()) for _ in range(1000)]  # each waits until nothing runs
    next(iter(running))
    assert threads() <= before + 2
    running.cancel()
    assert [handle.result(300) for handle in handles] == [None] * len(handles)


def test_a_format_does_not_wait_until_nothing_runs(llm):
    endless = llm.submit("a", **ENDLESS)
    forgetting = llm._port.begin(ClearCaches())
    assert llm.submit("b", response_format=["yes", "no"]).result(300).text in {"yes", "no"}
    assert not endless.done
    endless.cancel()
    forgetting.result(300)


def test_a_running_request_is_saved_while_a_prompt_waits_for_a_sequence_to_be_saved(llm):
    running = [llm.submit(text, **ENDLESS) for text in ("a", "b")]  # as many as there are sequences
    waiting = llm._port.begin(GetPromptSnapshot([97, 98]))
    saving = GetAnswerSnapshot(running[0].number, running[0].request)
    assert llm._port.begin(saving).result(300)
    assert not any(handle.done for handle in (*running, waiting))
    running[1].cancel()
    assert waiting.result(300)
    running[0].cancel()


def test_threads_share_a_worker(pair):
    here, there = pair
    wanted = {n: here.generate([n], max_tokens=8, temperature=0).tokens for n in range(8)}
    found = {}
    threads = [
        threading.Thread(
            target=lambda n=n: found.update({n: there.generate([n], max_tokens=8, temperature=0).tokens})
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert found == wanted


def test_a_cancelled_request_frees_its_place(path):
    with load(path, "cpu_ref", context=128, num_threads=1, worker=True) as llm:
        long = llm.submit("x", **ENDLESS)
        next(iter(long))
        long.cancel()
        assert long.result(300).finish_reason == "cancelled"
        assert llm.submit("y", max_tokens=2, temperature=0).result(300).tokens
        for _ in llm.stream("x", **ENDLESS):
            break
        llm.forget()  # waits until nothing runs


@pytest.mark.parametrize(
    ("options", "error"),
    [({"stop": [""]}, OptionError), ({"logit_bias": {10**6: 1.0}}, OptionError), ({"x": 1}, RequestError)],
)
def test_wrong_options_are_refused_at_once(llm, options, error):
    with pytest.raises(error):
        llm.submit("x", **options)


def test_the_workers_warnings_are_the_hosts(path, caplog):
    with caplog.at_level(logging.WARNING):
        load(path, "cpu_ref", context=CONTEXT * 2, worker=True).close()
    assert [r.name for r in caplog.records if "was trained for" in r.getMessage()] == [
        "backbay_engine.local.opening.load_checks"
    ]


def test_what_runs_in_the_worker_is_not_to_be_had_here(llm):
    with pytest.raises(RequestError, match="backend is in the model's worker"):
        llm.backend  # noqa: B018


# -- loading ---------------------------------------------------------------------------------------------


def test_progress_is_told_in_the_callers_thread(path):
    seen = []
    load(
        path, "cpu_ref", progress=lambda done: seen.append((done, threading.get_ident())), worker=True
    ).close()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (seen[0][0], seen[-1][0]) == (0.0, 1.0)
    assert {thread for _, thread in seen} == {threading.get_ident()}


@pytest.mark.fault("the load of a model with a worker is cancelled", "CancelledError; the worker ends")
def test_a_load_can_be_cancelled(path, starts):
    cancel = threading.Event()
    with pytest.raises(CancelledError, match="the load was cancelled; the weights are not loaded"):
        load(path, Slow, progress=lambda done: cancel.set() if done else None, cancel=cancel, worker=True)
    assert is_gone(starts[0].pid)


@pytest.mark.fault("the progress function of a load raises", "its error; the worker ends")
def test_an_error_of_the_progress_function_ends_the_load(path, starts):
    with pytest.raises(KeyError, match="mine"):
        load(path, "cpu_ref", progress=lambda _: {}["mine"], worker=True)
    assert is_gone(starts[0].pid)


def test_errors_of_a_load_keep_class_text_and_attributes(path, tmp_path):
    limited = BackendParams(max_memory={"CPU:0": 1000})
    for given, kind in (
        ({"path": tmp_path / "none.gguf"}, ModelFileError),
        ({"params": limited}, NoMemoryError),
        ({"kv_dtype": "f8"}, RequestError),
        ({"context": 1}, RequestError),
        ({"backend": "nope"}, UnknownBackendError),
        ({"params": BackendParams(options={"nope": 1})}, OptionError),
        ({"cancel": 5}, OptionError),
        ({"progress": 5}, OptionError),
    ):
        found = []
        for worker in (False, True):
            with pytest.raises(kind) as refused:
                load(**{"path": path, "backend": "cpu_ref", **given}, worker=worker)
            found.append(refused.value)
        assert str(found[0]) == str(found[1])
        assert {**vars(found[0]), "__notes__": 0} == {**vars(found[1]), "__notes__": 0}


def test_a_backend_may_be_a_class_that_can_be_imported(path, monkeypatch):
    with load(path, Dying, worker=True) as llm:
        assert llm.generate("x", max_tokens=1).tokens

    class Local(Dying):
        pass

    with pytest.raises(OptionError, match=r"Local cannot be imported; define it at the top of a module"):
        load(path, Local, worker=True)
    monkeypatch.setattr("sys.modules", {**sys.modules, "nowhere": SimpleNamespace(Dying=Dying)})
    monkeypatch.setattr(Dying, "__module__", "nowhere")
    with pytest.raises(OptionError, match=r"cannot be imported: No module named 'nowhere'; define"):
        load(path, Dying, worker=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"worker": 5}, "worker must be True or False, got 5"),
        ({"worker": True, "params": BackendParams(options={"x": lambda: 0})}, "must be picklable"),
    ],
)
def test_arguments_that_no_worker_takes_are_refused(path, given, told):
    with pytest.raises(OptionError, match=told):
        load(path, "cpu_ref", **given)


# -- deaths ----------------------------------------------------------------------------------------------


@pytest.mark.fault(
    "a worker is killed by SIGSEGV, SIGBUS, SIGABRT or SIGKILL in mid-answer, with `retries=0`",
    "BackendUnavailableError naming the signal; the next request finds a new worker",
)
@pytest.mark.parametrize("name", DEADLY)
@pytest.mark.few(4)
def test_a_killed_worker_is_an_error_of_what_ran(pair, name):
    here, there = pair
    wanted = here.generate("hello", max_tokens=8, temperature=0).tokens
    running = [there.submit("x", **ENDLESS), there.submit("y", **ENDLESS)]
    for handle in running:
        next(iter(handle))
    before = there.worker_pid
    kill(there, name)
    for handle in running:
        with pytest.raises(BackendUnavailableError, match=f"was killed by {name}"):
            handle.result(300)
    assert there.submit("hello", max_tokens=8, temperature=0).result(300).tokens == wanted
    assert there.worker_pid != before


@pytest.mark.fault(
    "an idle worker is killed, again and again", "nothing: the next request finds a new worker"
)
def test_an_idle_worker_may_die(llm, caplog):
    wanted = llm.generate("hello", max_tokens=4, temperature=0).tokens
    kill(llm)
    assert llm.generate("hello", max_tokens=4, temperature=0).tokens == wanted
    kill_and_wait(llm, "SIGSEGV")
    assert llm.memory().total() > 0
    assert llm.logits("hello").shape[1] == llm.vocabulary_size
    assert "was killed by SIGSEGV" in caplog.text


@pytest.mark.fault("many threads ask after a worker's death", "answers, from one new worker")
def test_many_threads_start_one_new_worker(path, starts):
    with load(path, "cpu_ref", **SIZES, worker=True) as llm:
        kill(llm)
        gate, found = threading.Barrier(8), []

        def ask():
            gate.wait()
            found.append(llm.generate("hello", max_tokens=4, temperature=0).tokens)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert len(found) == 8
        assert len(starts) == 2


@pytest.mark.fault(
    "a worker is killed while it loads", "BackendUnavailableError naming the signal; no further try"
)
@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL"])
def test_a_worker_killed_in_its_load_is_an_error(path, name, monkeypatch, starts):
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(BackendUnavailableError, match=f"killed by {name}.*while it loaded the model"):
        load(path, Dying, worker=True)
    assert len(starts) == 1


@pytest.mark.fault(
    "each new worker dies while it loads, with `retries=0`", "the error of the load, once for each request"
)
def test_a_worker_that_dies_again_gives_the_error_of_its_load(path, monkeypatch, starts):
    with load(path, Dying, **SIZES, worker=True, retries=0) as llm:
        monkeypatch.setenv(VARIABLE, "SIGABRT")
        kill(llm)
        for count in (2, 3):
            with pytest.raises(
                BackendUnavailableError, match=r"killed by SIGABRT.*while it loaded the model"
            ):
                llm.generate("x", max_tokens=1)
            assert len(starts) == count
        monkeypatch.delenv(VARIABLE)
        assert llm.generate("x", max_tokens=1).tokens


@pytest.mark.fault("the model file is gone when a new worker starts", "the error of the load in the request")
def test_a_file_that_is_gone_is_the_error_of_the_load(path, tmp_path):
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(path.read_bytes())
    with load(moved, "cpu_ref", **SIZES, worker=True) as llm:
        other = write_small_llama(tmp_path / "other.gguf", layers=1)
        moved.unlink()
        kill(llm)
        with pytest.raises(ModelFileError, match="a readable file"):
            llm.generate("x")
        other.rename(moved)
        assert llm.generate("x", max_tokens=1).tokens  # the same sizes and the same vocabulary


@pytest.mark.fault("another model lies in the file when a new worker starts", "ModelFileError in the request")
def test_another_model_in_the_file_is_refused(path, tmp_path):
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(path.read_bytes())
    with load(moved, "cpu_ref", **SIZES, worker=True) as llm:
        moved.unlink()
        moved.write_bytes(Path(stored("qwen2")).read_bytes())
        kill(llm)
        with pytest.raises(ModelFileError, match="expected the model that was loaded first"):
            llm.generate("x")


@pytest.mark.fault(
    "the model file is truncated in place under a model with a worker",
    "ModelFileError, or BackendUnavailableError naming SIGBUS; the host lives",
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(1)
def test_a_truncated_file_is_an_error_and_the_host_lives(path, tmp_path, backend):
    cut = tmp_path / "cut.gguf"
    whole = path.read_bytes()
    cut.write_bytes(whole)
    with load(cut, backend, **SIZES, worker=True, retries=0) as llm:
        running = llm.submit("x", **ENDLESS)
        next(iter(running))
        os.truncate(cut, 0)
        with suppress(BackendUnavailableError, ModelFileError):
            running.cancel()
            running.result(300)
            for n in range(30):
                llm.logits([n] * 60)
        assert llm.encode("hello")
        assert llm.chat_prompt([{"role": "user", "content": "hi"}])
        kill_and_wait(llm, "SIGKILL")
        cut.write_bytes(whole)
        assert llm.generate("x", max_tokens=2, temperature=0).tokens


@pytest.mark.fault(
    "a worker's address space is used up", "an error: no hang, whatever a library does; then a new worker"
)
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux limits another process")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(1)
def test_a_worker_without_memory_is_an_error(path, backend):
    with load(path, backend, **{**SIZES, "context": 4096}, worker=True) as llm:
        llm.generate("x", max_tokens=1)
        used = int(Path(f"/proc/{llm.worker_pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(llm.worker_pid, resource.RLIMIT_AS, (used, used))
        with suppress(BackbayError):
            for n in range(1, 12):
                llm.logits([n] * 2**n)
        kill_and_wait(llm, "SIGKILL")
        assert llm.generate("x", max_tokens=2).tokens


# -- the end ---------------------------------------------------------------------------------------------


@pytest.mark.fault("a model with a worker is closed while requests run", "ClosedError; the worker ends")
def test_close_ends_the_requests_and_the_worker(path, monkeypatch):
    monkeypatch.setattr("backbay_engine.worker.process.PATIENCE", PATIENCE)
    llm = load(path, "cpu_ref", **SIZES, worker=True)
    running, pid = llm.submit("x", **ENDLESS), llm.worker_pid
    next(iter(running))
    llm.close()
    assert not is_running(pid)
    with pytest.raises(ClosedError):
        running.result(0)
    with pytest.raises(ClosedError, match="the model is closed"):
        llm.generate("x")
    llm.close()


@pytest.mark.fault("a worker hangs when its model is closed", "it is killed")
def test_a_worker_that_hangs_is_killed(path, monkeypatch):
    monkeypatch.setattr("backbay_engine.worker.process.PATIENCE", 0.3)
    llm = load(path, "cpu_ref", **SIZES, worker=True)
    pid = llm.worker_pid
    kill(llm, "SIGSTOP")
    llm.close()
    assert is_gone(pid)


def test_a_dropped_model_ends_its_worker(path):
    llm = load(path, "cpu_ref", **SIZES, worker=True)
    pid = llm.worker_pid
    del llm
    assert is_gone(pid)
