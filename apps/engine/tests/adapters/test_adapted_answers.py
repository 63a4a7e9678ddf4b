"""Requests with adapters: several in a step, prefixes, snapshots, adapters added and removed while requests run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import CLOSE, merged, nmse, random_pairs, write_adapter
from model_files import stored, tensors_of
from small_llama import write_small_llama

import backbay
from backbay import BackendParams, ModelFileError, NoMemoryError
from backbay_engine import LLM, ForeignSnapshotError, RequestError, Rows, load

PROMPT = [3, 40, 77, 200, 31, 8, 120]
NAMES = ("a", "b", "c", "d")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logprobs": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers do not end."""
    return write_small_llama(tmp_path_factory.mktemp("models") / "m.gguf", endless=True)


@pytest.fixture(scope="module")
def files(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: write_adapter(folder / f"{name}.gguf", random_pairs(model, 2 + number, number), alpha=4)
        for number, name in enumerate(NAMES)
    }


@pytest.fixture(scope="module", params=[*sorted(backbay.backends()), "worker"])
def llm(model: Path, files: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[LLM]:
    worker = request.param == "worker"
    with load(
        model,
        "cpu_ref" if worker else request.param,
        parallel=8,
        context=64,
        kv_dtype="f32",
        adapters=files,
        worker=worker,
    ) as opened:
        yield opened


def test_rows_of_the_callers_own_are_adapted_as_tokens_are(model: Path, llm: LLM) -> None:
    table = tensors_of(model)["token_embd.weight"]
    prompt = [PROMPT[:2], Rows(table[PROMPT[2:]])]
    for choice in ("a", {"b": 1.0, "c": 0.5}, None):
        found, wanted = llm.logits(prompt, adapter=choice), llm.logits(PROMPT, adapter=choice)
        assert nmse(found, wanted) < 1e-10
    choices = ["a", "d", None, "a"]
    handles = [llm.submit([*prompt, [n]], adapter=choice, **GREEDY) for n, choice in enumerate(choices)]
    for n, (handle, choice) in enumerate(zip(handles, choices, strict=True)):
        wanted = llm.generate([*PROMPT, n], adapter=choice, reuse=False, **GREEDY)
        assert handle.result().tokens == wanted.tokens


def test_each_of_eight_requests_with_four_adapters_is_as_it_is_alone(llm: LLM) -> None:
    choices: list[Any] = ["a", "b", "c", "d", {"a": 0.5}, {"b": 1.0, "c": 0.5}, None, "d"]
    prompts = [[*PROMPT, number] for number in range(len(choices))]
    alone = [
        llm.generate(prompt, adapter=choice, reuse=False, **GREEDY)
        for prompt, choice in zip(prompts, choices, strict=True)
    ]
    handles = [
        llm.submit(prompt, adapter=choice, reuse=False, **GREEDY)
        for prompt, choice in zip(prompts, choices, strict=True)
    ]
    for handle, wanted in zip(handles, alone, strict=True):
        found = handle.result()
        assert found.tokens == wanted.tokens
        for each, other in zip(found.logprobs or (), wanted.logprobs or (), strict=True):
            assert each.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert len({tuple(each.tokens) for each in alone}) == len(alone)


def test_beginnings_are_reused_by_the_same_adapters_alone(llm: LLM) -> None:
    llm.forget()
    prompt = PROMPT * 3

    def reused(**options: Any) -> int:
        return llm.generate(prompt, **GREEDY, **options).timings.reused_tokens

    anew = llm.generate(prompt, adapter="a", reuse=False, **GREEDY)
    llm.forget()
    assert reused() == 0
    assert reused(adapter="a") == 0
    assert reused(adapter={"a": 0.5}) == 0
    assert reused(adapter={"a": 1.0, "b": 0.0}) == len(prompt) - 1
    assert reused() == len(prompt) - 1
    assert llm.generate(prompt, adapter="a", **GREEDY).tokens == anew.tokens


def test_scores_of_tokens_and_logits_have_the_adapter(llm: LLM) -> None:
    logits = llm.logits(PROMPT, adapter="b").astype(np.float64)
    scores = [each.logprob for each in llm.score_tokens(PROMPT, adapter="b")][1:]
    norms = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
    wanted = logits[np.arange(len(PROMPT) - 1), PROMPT[1:]] - norms[:-1]
    np.testing.assert_allclose(scores, wanted, atol=1e-4)
    assert nmse(llm.logits(PROMPT), logits) > CLOSE


def test_what_is_no_adapter_is_refused(llm: LLM) -> None:
    assert [*llm.adapters] == [*NAMES]
    with pytest.raises(RequestError, match=r"no adapter 'e'.*there are a, b, c, d"):
        llm.generate(PROMPT, adapter="e", **GREEDY)
    wrong: list[Any] = [7, ["a"], {"a": "much"}, {"a": float("nan")}, {"a": True}, {3: 1.0}]
    for choice in wrong:
        with pytest.raises(RequestError, match="adapter must be a name, or finite scales"):
            llm.logits(PROMPT, adapter=choice)


def test_snapshots_go_on_with_their_adapters(model: Path, files: dict[str, Path], tmp_path: Path) -> None:
    with load(model, "cpu_ref", context=64, adapters=files) as llm:
        whole = llm.generate(PROMPT, adapter={"a": 0.5, "b": 1}, **GREEDY)
        done = llm.submit(PROMPT, adapter={"a": 0.5, "b": 1}, **{**GREEDY, "max_tokens": 5})
        done.result()
        llm.save(done).write(tmp_path / "s")
        alone = llm.save(PROMPT, adapter="c")
    with load(model, "cpu_ref", context=64, adapters={"b": files["b"], "a": files["a"]}) as llm:
        snapshot = llm.restore(tmp_path / "s")
        assert snapshot.options["adapter"] == (("a", 0.5), ("b", 1.0))
        goes_on = llm.generate(snapshot.prompt, **{**snapshot.options, "max_tokens": GREEDY["max_tokens"]})
        assert goes_on.tokens == whole.tokens
        assert goes_on.timings.reused_tokens > 0
        with pytest.raises(ForeignSnapshotError, match=r"fingerprint .* is not loaded"):
            llm.restore(alone)


# -- while requests run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [False, True], ids=["here", "worker"])
def test_adapters_come_and_go_while_requests_run(model: Path, files: dict[str, Path], worker: bool) -> None:
    with load(model, "cpu_ref", parallel=2, context=64, worker=worker) as llm:
        plain = llm.generate(PROMPT, **GREEDY)
        running = llm.submit(PROMPT, **{**GREEDY, "max_tokens": 40})
        llm.add_adapter("x", files["a"])
        first = llm.generate(PROMPT, adapter="x", **GREEDY)
        assert first.tokens != plain.tokens
        assert running.result().tokens[:12] == plain.tokens
        with pytest.raises(RequestError, match="'x' is loaded"):
            llm.add_adapter("x", files["b"])
        llm.remove_adapter("x")
        with pytest.raises(RequestError, match="no adapter 'x'"):
            llm.generate(PROMPT, adapter="x", **GREEDY)
        llm.add_adapter("x", files["b"])  # whose cache is not the former one's
        assert llm.generate(PROMPT, adapter="x", **GREEDY).timings.reused_tokens == 0
        llm.add_adapter("y", files["a"])
        again = llm.generate(PROMPT, adapter="y", **GREEDY)
        assert again.tokens == first.tokens
        with pytest.raises(RequestError, match="no adapter 'z'"):
            llm.remove_adapter("z")


def test_an_adapter_in_use_stays(model: Path, files: dict[str, Path]) -> None:
    with load(model, "cpu_ref", context=64, adapters=files) as llm:
        steps = iter(llm.stream(PROMPT, adapter="a", max_tokens=50, temperature=0))
        next(steps)
        with pytest.raises(RequestError, match="requests use the adapter 'a'"):
            llm.remove_adapter("a")
        llm.remove_adapter("b")
        assert len("".join(steps)) > 0
        llm.remove_adapter("a")
        assert [*llm.adapters] == ["c", "d"]


def test_what_fails_to_be_added_changes_nothing(
    model: Path, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with load(model, "cpu_ref", context=64, adapters={"a": files["a"]}) as llm:
        logits = llm.logits(PROMPT, adapter="a")
        before = llm.memory().total()
        wrong = write_adapter(
            tmp_path / "w.gguf", {"blk.9.attn_q.weight": (np.ones((2, 32), "f"),) * 2}, alpha=1
        )
        with pytest.raises(ModelFileError):
            llm.add_adapter("w", wrong)
        with monkeypatch.context() as patch:
            from backbay_engine.runner.traced_steps import StepCache

            reserve, calls = StepCache._reserve, []

            def starved(cache: StepCache, steps: Any) -> int:
                calls.append(len(steps))
                if len(calls) == 1:
                    raise NoMemoryError("no memory for an injected fault", cache.model.backend.memory())
                return reserve(cache, steps)

            patch.setattr(StepCache, "_reserve", starved)
            with pytest.raises(NoMemoryError, match="injected"):
                llm.add_adapter("b", files["b"])
        assert len(calls) == 2  # the second reserves what was there
        assert [*llm.adapters] == ["a"]
        np.testing.assert_array_equal(llm.logits(PROMPT, adapter="a"), logits)
        assert llm.memory().total() == before


def test_a_limit_of_memory_counts_adapters(model: Path, files: dict[str, Path]) -> None:
    with load(model, "cpu_ref", context=64) as llm:
        total = llm.memory().total()
        device = llm.backend.devices()[0].id
    params = BackendParams(max_memory={device: total + 4096})
    with load(model, "cpu_ref", context=64, params=params) as llm:
        with pytest.raises(NoMemoryError):
            llm.add_adapter("a", files["a"])
        assert len(llm.generate(PROMPT, **GREEDY).tokens) == 12


def test_memory_is_given_back(model: Path, files: dict[str, Path]) -> None:
    with load(model, "cpu_ref", context=64) as llm:
        llm.add_adapter("a", files["a"])
        llm.remove_adapter("a")
        once = llm.memory().total()
        for name in NAMES:
            llm.add_adapter(name, files[name])
        for name in NAMES:
            llm.remove_adapter(name)
        assert llm.memory().total() - once < 1 << 18  # contexts with more nodes were booked meanwhile


def test_the_next_worker_has_the_adapters_of_the_former_one(model: Path, files: dict[str, Path]) -> None:
    import os
    import signal

    with load(model, "cpu_ref", context=64, worker=True, adapters={"a": files["a"]}) as llm:
        llm.add_adapter("b", files["b"])
        llm.remove_adapter("a")
        wanted = llm.generate(PROMPT, adapter="b", **GREEDY).tokens
        assert llm.worker_pid is not None
        os.kill(llm.worker_pid, signal.SIGKILL)
        assert llm.generate(PROMPT, adapter="b", **GREEDY).tokens == wanted
        assert [*llm.adapters] == ["b"]


# -- other models and steps --------------------------------------------------------------------------------


def test_a_step_without_adapters_is_traced_as_without_any_loaded(model: Path, files: dict[str, Path]) -> None:
    def structure(**options: Any) -> Any:
        loaded = load(model, "cpu_ref", context=64, **options)
        with loaded as llm, llm.step_cache.traced(llm.step(PROMPT)) as traced:
            traced.ctx.reserve()
            graph = traced.ctx.recording._graph
            assert graph is not None
            return graph.structure_key(), graph.sizes()

    assert structure() == structure(adapters=files)


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_vectors_of_texts_have_the_adapter(backend: str, tmp_path: Path) -> None:
    source = stored("bert-mean")
    pairs = random_pairs(source, 4, 1)
    file = write_adapter(tmp_path / "a.gguf", pairs, alpha=4, architecture="bert")
    texts = [[5, 6, 7, 20], [9, 8]]
    with load(source, backend, adapters={"a": file}) as llm:
        found, plain = llm.embed(texts, adapter="a"), llm.embed(texts)
        llm.remove_adapter("a")
        with pytest.raises(RequestError, match="no adapter 'a'"):
            llm.embed(texts, adapter="a")
    with load(merged(source, tmp_path / "m.gguf", (pairs, 1.0)), backend) as llm:
        wanted = llm.embed(texts)
    assert nmse(found, wanted) < 1e-5 < nmse(plain, wanted)
