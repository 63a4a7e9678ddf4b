"""Snapshots: a conversation goes on elsewhere as it would have, and no token is computed again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from constraints import Among
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_files import unpacked
from runner_scripts import OPTIONS, prompt
from scripted_model import write_scripted_model
from small_llama import EOS, WORDS, write_small_llama

import backbay
from backbay_engine import (
    LLM,
    Completion,
    ContextOverflowError,
    ForeignSnapshotError,
    Handle,
    RequestError,
    Snapshot,
    load,
)
from backbay_engine.runner.traced_steps import StepCache

SIZES: dict[str, Any] = {"context": 96, "parallel": 2, "batch": 32, "num_threads": 1, "kv_dtype": "f32"}
BACKENDS = sorted(backbay.backends())
ENDLESS = {"logit_bias": {EOS: float("-inf")}}
TEXT = "a conversation that moves"
# caches of attention, with windows, with chunks, latent, recurrent, of several kinds, and of an encoder and a decoder
KINDS = ["llama4", "gemma2", "gemma3n", "deepseek2-lite", "mamba2", "rwkv7", "qwen35", "t5-flan"]
PROPERTY = settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def others(path: Path) -> Iterator[list[LLM]]:
    """The same model on each backend."""
    opened = [load(path, backend, **SIZES) for backend in BACKENDS]
    yield opened
    for each in opened:
        each.close()


def saved(llm: LLM, asked: Any, after: int, **options: Any) -> tuple[Handle[Completion], Snapshot]:
    """A request, and its snapshot after so many tokens, or after its end if it has fewer."""
    if llm.worker_pid is None:
        return saved_between_steps(llm, asked, after, **options)
    for _ in range(20):  # nothing holds the worker, which may be done before it is asked
        handle = llm.submit(asked, **options)
        steps = handle.steps()
        for _ in range(after):
            next(steps, None)
        snapshot = llm.save(handle)
        tokens = len(snapshot.options["resume"])
        if not handle.done or tokens <= after or tokens < len(handle.result(300).tokens):
            break
    return handle, snapshot


def saved_between_steps(
    llm: LLM, asked: Any, after: int, **options: Any
) -> tuple[Handle[Completion], Snapshot]:
    """The same in this process, whose runner waits until it is asked."""
    runner, begun, reached, queued = llm._port.runner, count(1), Event(), Event()
    between = runner.between

    def noted(task: Any) -> Any:
        future = between(task)
        queued.set()
        return future

    def hold(_: Any) -> None:
        if next(begun) == after:
            reached.set()
            queued.wait(300)

    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(runner, "between", noted)
        handle = llm.submit(asked, on_step=hold, **options)
        while not (reached.wait(0.01) or handle.done):
            pass
        return handle, llm.save(handle)


def interrupted(llm: LLM, asked: Any, after: int, **options: Any) -> Snapshot:
    """The snapshot of an answer after so many tokens; it ends then."""
    handle, snapshot = saved(llm, asked, after, **options)
    handle.cancel()
    handle.result(300)
    return snapshot


def goes_on(llm: LLM, snapshot: Snapshot | Path, patch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of the whole answer; the steps compute only what follows the snapshot."""
    restored = llm.restore(snapshot)
    computed: list[int] = []
    run = StepCache.run

    def noted(self: StepCache, step: Any, cancel: Any = None) -> Any:
        computed.append(step.size)
        return run(self, step, cancel)

    with patch.context() as patching:
        patching.setattr(StepCache, "run", noted)
        found = llm.generate(list(restored.prompt), **restored.options)
    if llm.worker_pid is None:
        new = len(found.tokens) - len(restored.options["resume"])
        assert sum(computed) == new, "each new token is a step of one, and nothing is computed again"
    assert found.timings.reused_tokens == found.timings.prompt_tokens
    return found.tokens


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"temperature": 1.0, "seed": 3}, {"seed": 5, "frequency_penalty": 0.4, "top_k": 5}],
    ids=["greedy", "seed", "penalties"],
)
@pytest.mark.few(4)
def test_an_answer_goes_on_on_any_backend(
    llm: LLM, others: list[LLM], options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"max_tokens": 40, **ENDLESS, **options}
    whole = others[0].generate(TEXT, **options).tokens
    file = tmp_path / "talk.safetensors"
    interrupted(llm, TEXT, 9, **options).write(file)
    for other in [*others, llm]:
        assert goes_on(other, file, monkeypatch) == whole


def test_a_random_seed_goes_on_too(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, snapshot = saved(llm, TEXT, 1, max_tokens=30, **ENDLESS)
    whole = handle.result(300)  # it was not disturbed
    assert goes_on(llm, snapshot, monkeypatch) == whole.tokens


def test_a_prompt_is_saved_with_its_cache(
    llm: LLM, others: list[LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = llm.save(TEXT)
    assert list(snapshot.prompt) == llm.encode(TEXT) == list(snapshot.tokens)
    expected = llm.generate(TEXT + " on", temperature=0, max_tokens=8).tokens
    for other in others:
        other.forget()
        other.restore(snapshot)
        found = other.generate(TEXT + " on", temperature=0, max_tokens=8)
        assert found.tokens == expected
        assert found.timings.reused_tokens == len(snapshot.tokens)


def test_a_snapshot_serves_only_prompts_that_begin_with_all_of_it(llm: LLM, others: list[LLM]) -> None:
    snapshot = llm.save(TEXT)
    beginning = list(snapshot.tokens)[:-3]
    for other, shared in product(others, (False, True)):
        other.forget()
        other.restore(snapshot, shared=shared)
        whole = other.generate(list(snapshot.tokens), temperature=0, max_tokens=2)
        assert whole.timings.reused_tokens == len(snapshot.tokens) - 1
        longer = other.generate(TEXT + " on", temperature=0, max_tokens=2)
        assert longer.timings.reused_tokens == len(snapshot.tokens)
        of_another = other.generate([*beginning, 120, 121], temperature=0, max_tokens=2)
        assert of_another.timings.reused_tokens == (len(beginning) if shared else 0)


def test_after_a_shift_nothing_of_a_snapshot_serves_other_prompts(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as llm:
        snapshot = llm.save(TEXT)
        llm.forget()
        llm.restore(snapshot)
        llm.generate(list(snapshot.tokens), max_tokens=90, num_keep=8, temperature=0, **ENDLESS)
        other = llm.generate([*snapshot.tokens[:8], 120, 121], max_tokens=1, temperature=0)
        assert other.timings.reused_tokens == 0


def test_what_a_snapshot_brought_is_not_kept_for_other_processes(path: Path, tmp_path: Path) -> None:
    text = "x" * 70
    with load(path, "cpu_ref", **SIZES) as one:
        snapshot = one.save(text)
    for restores in (True, False):
        with load(path, "cpu_ref", **SIZES, cache_dir=tmp_path) as two:
            if restores:
                two.restore(snapshot)
            two.generate(text + "y", max_tokens=1, temperature=0)
        assert any(tmp_path.glob("**/*.safetensors")) != restores


def test_a_request_that_is_over_is_saved_with_its_answer(llm: LLM, others: list[LLM]) -> None:
    handle = llm.submit(TEXT, max_tokens=12, temperature=0, **ENDLESS)
    answer = handle.result(300)
    snapshot = llm.save(handle)
    assert snapshot.options["resume"] == tuple(answer.tokens)
    longer = others[0].generate(TEXT, max_tokens=20, temperature=0, **ENDLESS).tokens
    for other in others:
        other.forget()
        other.restore(snapshot)
        found = other.generate(list(snapshot.prompt), **{**snapshot.options, "max_tokens": 20})
        assert found.tokens == longer


def test_a_request_that_waits_is_saved_without_a_cache(llm: LLM) -> None:
    running = [llm.submit(TEXT, max_tokens=10**6, num_keep=4, **ENDLESS) for _ in range(2)]
    waiting = llm.submit("waits", max_tokens=5, temperature=0)
    snapshot = llm.save(waiting)
    for handle in running:
        handle.cancel()
    assert (snapshot.tokens, snapshot.nbytes, snapshot.options["resume"]) == ((), 0, ())
    llm.restore(snapshot)
    assert llm.generate(list(snapshot.prompt), **snapshot.options).tokens == waiting.result(300).tokens


@PROPERTY
@given(
    st.integers(0, 30),
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 30), "seed": st.integers(0, 2**63 - 1)},
        optional={
            "temperature": st.sampled_from([0, 0.5, 2.0]),
            "top_k": st.sampled_from([0, 3]),
            "repetition_penalty": st.floats(0.7, 1.5),
            "penalty_window": st.integers(-1, 8),
            "logit_bias": st.dictionaries(st.sampled_from([97, 98, 0xE2, EOS]), st.floats(0, 9)),
            "stop": st.lists(st.text("abc€", min_size=1, max_size=4), max_size=3),
            "reuse": st.just(True),
        },
    ),
)
def test_any_answer_goes_on_after_any_token(llm: LLM, after: int, options: dict[str, Any]) -> None:
    whole = llm.generate("x", **options)
    snapshot = Snapshot.from_bytes(interrupted(llm, "x", after, **options).to_bytes())
    llm.restore(snapshot)
    found = llm.generate(list(snapshot.prompt), **snapshot.options)
    assert (found.tokens, found.text, found.finish_reason) == (whole.tokens, whole.text, whole.finish_reason)


def test_requests_that_run_are_not_disturbed(llm: LLM) -> None:
    options = {"max_tokens": 50, "temperature": 0, **ENDLESS}
    alone = [llm.generate(text, **options).tokens for text in ("one", "two")]
    handles = [llm.submit(text, **options) for text in ("one", "two")]
    saved = [llm.save(handles[n % 2]) for n in range(6)]
    assert [handle.result(300).tokens for handle in handles] == alone
    for n, snapshot in enumerate(saved):
        llm.restore(snapshot)
        assert llm.generate(list(snapshot.prompt), **snapshot.options).tokens == alone[n % 2]


def test_all_options_of_a_request_are_in_the_file(others: list[LLM]) -> None:
    given_options = {
        "max_tokens": 30,
        "stop": ("zzz",),
        "num_keep": 3,
        "reuse": True,
        "shown": (EOS,),
        "temperature": 1.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.01,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "penalty_window": 7,
        "seed": 5,
        "logprobs": 1,
        "logit_bias": {EOS: float("-inf"), 98: 1.5},
        "speculate": False,
    }
    snapshot = Snapshot.from_bytes(interrupted(others[0], TEXT, 3, **given_options).to_bytes())
    for name, value in given_options.items():
        assert snapshot.options[name] == value or name == "logit_bias", name
    assert snapshot.options["logit_bias"].items() >= given_options["logit_bias"].items()
    others[0].submit(list(snapshot.prompt), **snapshot.options).result(300)


def test_formats_go_on(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    options = {"response_format": "[ab]{30}", "seed": 4}
    whole = llm.generate("x", **options).tokens
    snapshot = Snapshot.from_bytes(interrupted(llm, "x", 7, **options).to_bytes())
    llm.restore(snapshot)
    assert llm.generate(list(snapshot.prompt), **snapshot.options).tokens == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.few(2)
def test_every_kind_of_cache_moves(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, sizes = unpacked(kind, tmp_path), {**SIZES, "batch": 48}
    asked, options = prompt(30, 1), {**OPTIONS, "max_tokens": 40}
    opened = [load(file, backend, **sizes) for backend in BACKENDS]
    try:
        whole = opened[0].generate(asked, **options).tokens
        for source in opened:
            path = tmp_path / "moved.safetensors"
            interrupted(source, asked, 12, **options).write(path)
            for target in opened:
                assert goes_on(target, path, monkeypatch) == whole, (source.backend.name, target.backend.name)
    finally:
        for each in opened:
            each.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.few(4)
def test_a_cache_goes_on_within_its_dtype(backend: str, dtype: str, tmp_path: Path) -> None:
    path = write_small_llama(tmp_path / "wide.gguf", head=32)
    try:
        one = load(path, backend, **{**SIZES, "kv_dtype": dtype})
    except (backbay.DTypeError, RequestError):
        pytest.skip(f"{backend} holds no cache of {dtype}")
    with one, load(path, "cpu_ref", **SIZES) as exact:
        snapshot = one.save(TEXT)
        assert snapshot.contents.arrays["keys.0"].dtype == (np.float32 if dtype == "bf16" else np.float16)
        for target in (one, exact):
            target.forget()
            target.restore(snapshot)
        ids = [*snapshot.tokens, 101]
        first = [each.generate(ids, max_tokens=1, temperature=0, logprobs=4) for each in (one, exact)]
        assert [each.timings.reused_tokens for each in first] == [len(snapshot.tokens)] * 2
        here, there = ({t.token: t.logprob for t in (each.logprobs or [])[0].top} for each in first)
        tolerance = {"f16": 0.01, "bf16": 0.05, "q8_0": 0.05, "q4_0": 0.6}[dtype]
        for token in set(here) & set(there):
            assert here[token] == pytest.approx(there[token], abs=tolerance)
        assert set(here) & set(there)


def test_a_longer_context_and_other_sizes_serve(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"max_tokens": 30, "temperature": 0, **ENDLESS}
    with load(path, "cpu_ref", **SIZES) as one:
        whole = one.generate(TEXT, **options).tokens
        snapshot = interrupted(one, TEXT, 5, **options)
    with load(path, "cpu_ref", context=200, parallel=5, batch=7, num_threads=1) as other:
        assert goes_on(other, snapshot, monkeypatch)[:20] == whole[:20]
    with load(path, "cpu_ref", **{**SIZES, "context": 16}) as small, pytest.raises(ContextOverflowError):
        small.restore(snapshot)


def test_the_file_is_one_that_others_read(llm: LLM, tmp_path: Path) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    llm.save(TEXT).write(tmp_path / "talk.safetensors")
    tensors = numpy_reader.load_file(tmp_path / "talk.safetensors")
    tokens = len(llm.encode(TEXT))
    assert tensors["cache.keys.0"].shape == (tokens, 2, 8)
    assert tensors["tokens"].tolist() == llm.encode(TEXT)


def test_keys_are_those_of_the_logical_order(others: list[LLM]) -> None:
    """Backends that permute values, or pad their cells, give the same arrays."""
    snapshots = [other.save(TEXT) for other in others]
    first = snapshots[0].contents.arrays
    for snapshot in snapshots[1:]:
        assert first.keys() == snapshot.contents.arrays.keys()
        for name, array in first.items():
            np.testing.assert_allclose(array, snapshot.contents.arrays[name], atol=1e-4)


def test_what_cannot_be_saved_is_refused(llm: LLM, tmp_path: Path) -> None:
    handle = llm.submit("x", max_tokens=3, constraint=Among([97], WORDS))
    with pytest.raises(RequestError, match="constraint of your own"):
        llm.save(handle)
    handle.result(300)
    with load(unpacked("bert", tmp_path), "cpu_ref") as vectors, pytest.raises(RequestError, match="makes"):
        vectors.save("x")


def test_another_model_is_refused(llm: LLM, tmp_path: Path) -> None:
    snapshot = llm.save(TEXT)
    with load(write_small_llama(tmp_path / "other.gguf", seed=9), "cpu_ref", **SIZES) as other:
        with pytest.raises(ForeignSnapshotError, match="only the same weights can go on"):
            other.restore(snapshot)
        assert other.generate(TEXT, max_tokens=2, temperature=0).timings.reused_tokens == 0


def test_a_snapshot_goes_from_this_process_into_a_worker(tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path / "scripted.gguf")
    with load(path, "cpu_ref", **SIZES) as here, load(path, "cpu_ref", worker=True, **SIZES) as there:
        answered = here.submit([97, 98, 99], max_tokens=4)
        answered.result(300)
        snapshot = replace(here.save(answered), notes={"of the caller": threading.Lock()})
        there.restore(snapshot, shared=True)
        found = there.generate(list(snapshot.prompt), max_tokens=1)
        assert found.timings.reused_tokens == 2


def test_the_request_of_another_model_is_not_taken_for_an_own(path: Path) -> None:
    with load(path, "cpu_ref", **SIZES) as one, load(path, "cpu_ref", **SIZES) as other:
        handle = one.submit([5, 6, 7], max_tokens=6, temperature=0, **ENDLESS)
        running = other.submit([9, 9, 9, 9], max_tokens=10**6, num_keep=4, **ENDLESS)
        snapshot = other.save(handle)
        running.cancel()
        assert snapshot.prompt == (5, 6, 7)
        assert snapshot.options["resume"] == tuple(handle.result(300).tokens)
        assert snapshot.tokens[:3] == (5, 6, 7)
