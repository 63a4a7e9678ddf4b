"""A model takes the memory that was reported before it opened, whatever the requests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_files import stored, unpacked
from small_llama import EOS, write_small_llama

import backbay
from backbay import Backend, BackendParams, NoMemoryError
from backbay.cli import main
from backbay_engine import LLM, LogitsError, RequestError, estimate, load
from backbay_engine.cache.cells import storage
from backbay_engine.runner.requests.answer import Completion

BACKENDS = sorted(backbay.backends())
SIZES: dict[str, Any] = {"context": 700, "parallel": 3, "batch": 64}
OPTIONS: dict[str, Any] = {"temperature": 0, "logit_bias": {EOS: float("-inf")}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


def within(path: Path, backend: str, sizes: dict[str, Any]) -> LLM:
    """The model, with a memory limit of exactly its own estimate."""
    told = estimate(path, backend, params=BackendParams(num_threads=1), **sizes)
    limits = {told.cpu.id: told.total()}
    return load(path, backend, params=BackendParams(num_threads=1, max_memory=limits), **sizes)


def ask_for_everything(llm: LLM) -> list[Completion]:
    """Prompts of many lengths, alone and together; scattered cells, and full contexts."""
    found = [llm.generate([n] * n, max_tokens=2, **OPTIONS) for n in range(1, 80, 9)]
    long, short = [*range(100)] * 6, [*range(10)]
    handles = [llm.submit(short, max_tokens=40, **OPTIONS), llm.submit(long, max_tokens=3, **OPTIONS)]
    found += [handle.result() for handle in handles]
    handles = [llm.submit([*long, *range(n)], max_tokens=40, num_keep=4, **OPTIONS) for n in (70, 90)]
    return found + [handle.result() for handle in handles]


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_runs_within_what_was_told(path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    run = storage.CellMover.run

    def noted(self: storage.CellMover, sources: Any, targets: Any, offset: int = 0) -> None:
        moved.append(offset)
        run(self, sources, targets, offset)

    monkeypatch.setattr(storage.CellMover, "run", noted)
    with within(path, backend, SIZES) as llm:
        promised = llm.memory().total()
        answers = ask_for_everything(llm)
        assert llm.memory().total() <= promised
    assert [answer.finish_reason for answer in answers] == ["length"] * len(answers)
    assert len(answers[-1].tokens) == 40
    assert 0 in moved  # cells were gathered
    assert any(offset < 0 for offset in moved)  # and shifted


@pytest.mark.parametrize("backend", BACKENDS)
def test_prompts_of_fewer_tokens_that_pack_less_well_run_within_what_was_told(
    tmp_path: Path, backend: str
) -> None:
    """ggml needs 5 % more for 127 tokens of this model than for 128."""
    sizes: dict[str, Any] = {"context": 256, "parallel": 1, "batch": 128}
    with within(unpacked("qwen3next", tmp_path), backend, sizes) as llm:
        for length in (128, 120, 113):
            assert llm.generate([7] * length, max_tokens=1, temperature=0, reuse=False).tokens


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_more_is_kept_than_was_told_where_there_is_no_limit(path: Path, backend: str) -> None:
    with load(path, backend, num_threads=1, **SIZES) as llm:
        promised = llm.memory().total()
        for n in range(1, 64, 3):
            llm.generate([n] * n, max_tokens=2, **OPTIONS)
            assert llm.memory().total() <= promised


@pytest.mark.parametrize("backend", BACKENDS)
def test_steps_run_within_what_was_told(path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first step of a shape, whose context is new while older ones are kept."""
    told = estimate(path, backend, **SIZES).total()
    most: list[int] = []
    run = Backend.run

    def noted(self: Backend, *given: Any) -> None:
        most.append(self.memory().total())
        run(self, *given)

    monkeypatch.setattr(Backend, "run", noted)
    with load(path, backend, **SIZES) as llm:
        ask_for_everything(llm)
    assert max(most) <= told


@pytest.mark.parametrize("backend", BACKENDS)
def test_texts_are_embedded_within_what_was_told(backend: str) -> None:
    with within(stored("bert-mean"), backend, {"batch": 64}) as llm:
        promised = llm.memory().total()
        for n in range(1, 64):
            assert llm.embed([[1] * n, [2]]).shape[0] == 2
        assert llm.memory().total() <= promised


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_finite_is_cleared_within_what_was_told(tmp_path: Path, backend: str) -> None:
    broken = write_small_llama(tmp_path / "broken.gguf", broken_layer=1)
    with within(broken, backend, {"context": 64, "parallel": 2, "batch": 4}) as llm:
        for _ in range(3):
            with pytest.raises(LogitsError):
                llm.generate([1, 2, 3], max_tokens=2)
        assert llm.runner is not None
        assert all(not slot.tokens for slot in llm.runner.slots.all)


# -- what no machine has ---------------------------------------------------------------------------------


@pytest.mark.fault("a cache larger than any machine is asked for", "NoMemoryError or RequestError, at once")
@pytest.mark.parametrize(
    ("sizes", "error", "told"),
    [
        ({"parallel": 10**9}, RequestError, r"parallel must be an integer in \[1, 65536\], got 1000000000"),
        ({"batch": 10**30}, RequestError, r"batch must be an integer in \[1, 1048576\]"),
        ({"context": 10**20}, RequestError, r"context must be an integer in \[2, 1073741824\]"),
        ({"context": 10**6, "parallel": 10**4}, RequestError, "10000000000 cells of a cache"),
        ({"context": 2**30}, NoMemoryError, r"no memory for .* on .*: .*(iB in all|llocate)"),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_no_machine_has_are_refused(
    path: Path, backend: str, sizes: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        load(path, backend, num_threads=1, **sizes)


def test_more_positions_than_were_learned_are_refused() -> None:
    with pytest.raises(RequestError, match=r"a context of 257 tokens.*learned 256 positions.*context=256"):
        load(stored("bert-mean"), "cpu_ref", context=257)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_model_that_guesses_is_told_apart(path: Path, backend: str, capsys: Any) -> None:
    sizes = {**SIZES, "params": BackendParams(num_threads=1)}
    alone = estimate(path, backend, **sizes)
    told = estimate(path, backend, **sizes, draft=path, draft_backend="cpu_ref")
    assert alone.draft is None
    assert told.draft is not None
    assert told.total() == replace(told, draft=None).total() + told.draft.total()
    with load(path, backend, **sizes, draft=path, draft_backend="cpu_ref") as llm:
        held = llm.memory().draft
        assert held is not None
        assert held.total() == told.draft.total() == held.allocated()
    assert main(["memory", str(path), "--backend", backend, "--draft", str(path), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)["memory"]
    assert reported["draft"]["total"] > 0
