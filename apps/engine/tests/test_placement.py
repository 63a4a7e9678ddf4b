"""Layers lie on GPUs as far as they fit with their caches and graphs, and on fewer where a GPU refuses."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, ClassVar

import numpy as np
import pytest
from small_llama import write_small_llama

import backbay
from backbay import (
    BackendParams,
    CancelledError,
    DeviceInfo,
    GPULayers,
    GPULayersList,
    NoMemoryError,
    OptionError,
    Placement,
)
from backbay_engine import LLM, estimate, load
from backbay_engine.port.options import LoadOptions
from backbay_engine.trials.model_speed import TrialTask, run_task

CPU = "CPU:0"
CpuRef: Any = backbay.backends()["cpu_ref"].load()
SIZES: dict[str, Any] = {"context": 256, "parallel": 2, "batch": 32}
PLENTY = 1 << 30


class WithGpus(CpuRef):
    """The reference, which pretends that GPUs hold layers.

    free    the bytes that each GPU says are free
    grants  the bytes that it really gives
    """

    splits_layers = True
    free: ClassVar[list[int]] = [PLENTY]
    grants: ClassVar[list[int]] = [PLENTY]
    opened: ClassVar[list[list[int]]] = []
    """The layers on GPUs of each model that was opened to run."""

    def devices(self) -> list[DeviceInfo]:
        gpus = [
            DeviceInfo(f"FAKE:{n}", "a fake", True, total, free)
            for n, (free, total) in enumerate(zip(self.free, self.grants, strict=True))
        ]
        return [*super().devices(), *gpus]

    def start(self) -> None:
        self.placed = dict[int, str]()
        if self.model is not None:
            layers = range(self.ledger.layers) if self.params.gpu_layers is None else ()
            self.placed = dict.fromkeys(layers, "FAKE:0")
            self.placed |= {n: gpu.id for gpu in self.params.gpu_layers or () for n in gpu.layers}
            if self.params.alloc_memory:
                self.opened.append(sorted(self.placed))
        super().start()

    def device_of(self, placement: Placement) -> str:
        return CPU if placement.layer is None else self.placed.get(placement.layer, CPU)

    def book_weights(self) -> None:
        for info in self.model.tensors.values() if self.model is not None else ():
            entry = self.weight_entry(info.name)
            self.ledger.take(entry, info.nbytes, lambda: None, mapped=entry.device == CPU)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf", layers=4)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the free and the granted bytes of each GPU; gives the layers of each model that was opened since."""

    def set_gpus(free: list[int], grants: list[int] | None = None) -> list[list[int]]:
        monkeypatch.setattr(WithGpus, "free", free)
        monkeypatch.setattr(WithGpus, "grants", grants or [PLENTY] * len(free))
        monkeypatch.setattr(WithGpus, "opened", opened := [])
        return opened

    return set_gpus


@pytest.fixture(scope="module")
def costs(path: Path) -> list[int]:
    """The bytes of each layer with its cache, the output last."""
    memory = estimate(path, "cpu_ref", **SIZES).cpu
    return [a.size + b.size for a, b in zip(memory.weights, memory.cache, strict=True)]


@pytest.fixture(scope="module")
def graph(path: Path) -> int:
    return estimate(path, "cpu_ref", **SIZES).cpu.graph.size


def answer(path: Path, **options: Any) -> LLM:
    """The loaded model, which gives the reference's answer."""
    llm = load(path, WithGpus, **SIZES, **options)
    with load(path, "cpu_ref", **SIZES) as reference:
        assert np.array_equal(llm.logits([1, 2, 3]), reference.logits([1, 2, 3]))
    return llm


def test_all_layers_lie_on_a_gpu_that_has_room(path: Path, gpus: Any) -> None:
    opened = gpus([PLENTY])
    with answer(path) as llm:
        assert all(layer.size for layer in llm.memory().gpus[0].weights)
    assert opened == [[0, 1, 2, 3, 4]]


def test_caches_and_graphs_are_counted_before_anything_is_allocated(
    path: Path, gpus: Any, costs: list[int], graph: int
) -> None:
    room = graph + sum(costs[-3:])
    opened = gpus([room], [room - graph])
    with answer(path):
        assert opened == [[2, 3, 4]]
    opened = gpus([room - 1])
    with answer(path):
        assert opened == [[3, 4]]


def test_an_estimate_places_layers_as_the_model_will_lie(
    path: Path, gpus: Any, costs: list[int], graph: int
) -> None:
    gpus([graph + sum(costs[-2:])])
    weights = estimate(path, WithGpus, **SIZES).gpus[0].weights
    assert [layer for layer, each in enumerate(weights) if each.size] == [3, 4]


def test_a_gpu_that_refuses_gets_fewer_layers(
    path: Path, gpus: Any, costs: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    opened = gpus([PLENTY], [sum(costs[-2:])])
    with answer(path) as llm:
        assert sum(layer.size for layer in llm.memory().gpus[0].weights) > 0
    assert opened[0] == [0, 1, 2, 3, 4] and len(opened[-1]) in (1, 2) and len(opened) <= 4
    sizes = [len(layers) for layers in opened]
    assert sizes == sorted(set(sizes), reverse=True)
    told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == len(opened) - 1
    assert all("no memory for" in each and "trying again with" in each for each in told)


def test_a_warning_about_a_model_comes_once(path: Path, gpus: Any, caplog: pytest.LogCaptureFixture) -> None:
    gpus([PLENTY])
    load(path, WithGpus, context=512).close()
    assert len([record for record in caplog.records if "was trained for" in record.message]) == 1


def test_a_load_can_be_cancelled_between_two_tries(
    path: Path, gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, cancel = gpus([PLENTY], [1]), Event()
    book_weights = WithGpus.book_weights

    def book(backend: WithGpus) -> None:
        if backend.params.alloc_memory:
            cancel.set()
        book_weights(backend)

    monkeypatch.setattr(WithGpus, "book_weights", book)
    with pytest.raises(CancelledError):
        load(path, WithGpus, **SIZES, cancel=cancel)
    assert len(opened) == 1


def test_a_gpu_that_gives_nothing_leaves_all_layers_to_the_cpu(path: Path, gpus: Any) -> None:
    opened = gpus([PLENTY], [1])
    with answer(path):
        assert opened[-1] == [] and len(opened) <= 4


def test_a_backend_that_splits_no_layers_has_all_of_them_on_a_gpu_or_none(
    path: Path, gpus: Any, costs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithGpus, "splits_layers", False)
    opened = gpus([PLENTY], [sum(costs[-2:])])
    with answer(path):
        assert opened == [[0, 1, 2, 3, 4], []]


def test_a_backend_that_splits_no_layers_has_all_of_them_on_the_gpu_that_is_asked_for(
    path: Path, gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WithGpus, "splits_layers", False)
    gpus([PLENTY, PLENTY])
    for asked in ({"main_gpu": 1}, {"tensor_split": [0, 1]}):
        with answer(path, **asked) as llm:
            assert [sum(bool(layer.size) for layer in gpu.weights) for gpu in llm.memory().gpus] == [0, 5]
    with pytest.raises(OptionError, match="main_gpu"):
        load(path, WithGpus, main_gpu=2)
    opened = gpus([PLENTY, PLENTY], [PLENTY, 1])
    with answer(path, main_gpu=1):
        assert opened == [[0, 1, 2, 3, 4], []]


def test_an_option_that_demands_a_gpu_leaves_the_error_of_its_memory(
    path: Path, gpus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = WithGpus.start

    def demand(backend: WithGpus) -> None:
        if backend.params.gpu_layers == []:
            raise OptionError("option provider asks for FAKE:0, but gpu_layers for the CPU alone")
        start(backend)

    monkeypatch.setattr(WithGpus, "start", demand)
    gpus([PLENTY], [1])
    with pytest.raises(NoMemoryError, match="FAKE:0"):
        load(path, WithGpus, **SIZES)


def test_a_trial_of_speed_places_layers_as_the_load_will(path: Path, gpus: Any) -> None:
    options = LoadOptions(context=64, batch=64)
    opened = gpus([PLENTY], [1])
    assert run_task(TrialTask(path, WithGpus, options), lambda: None).seconds > 0
    assert opened[-1] == []
    opened = gpus([PLENTY])
    run_task(TrialTask(path, WithGpus, replace(options, num_gpu_layers=0)), lambda: None)
    assert opened == [[]]


def test_fewer_layers_on_gpus_are_not_tried_where_the_cpu_is_short(path: Path, gpus: Any) -> None:
    opened = gpus([PLENTY])
    with pytest.raises(NoMemoryError, match=CPU):
        load(path, WithGpus, **SIZES, params=BackendParams(max_memory={CPU: 1}))
    assert len(opened) == 1


def test_the_older_settings_place_layers(path: Path, gpus: Any) -> None:
    opened = gpus([PLENTY, PLENTY])
    with answer(path, num_gpu_layers=2) as llm:
        assert [bool(each.size) for each in llm.memory().gpus[0].weights] == [False] * 3 + [True] * 2
    with answer(path, num_gpu_layers=5, main_gpu=1, tensor_split=[3, 2]) as llm:
        first, second = ([bool(each.size) for each in gpu.weights] for gpu in llm.memory().gpus)
        assert first == [True] * 3 + [False] * 2 and second == [False] * 3 + [True] * 2
    with answer(path, num_gpu_layers=0):
        assert opened == [[3, 4], [0, 1, 2, 3, 4], []]
    with answer(path, num_gpu_layers=-1):
        assert opened[-1] == [0, 1, 2, 3, 4]


def test_two_ways_to_place_layers_are_refused(path: Path, gpus: Any) -> None:
    params = BackendParams(gpu_layers=GPULayersList([GPULayers("FAKE:0", [0])]))
    for given in ({"num_gpu_layers": 1}, {"main_gpu": 1}, {"tensor_split": [1]}):
        with pytest.raises(OptionError, match=r"params\.gpu_layers"):
            load(path, WithGpus, params=params, **given)
    with pytest.raises(OptionError, match="main_gpu"):
        load(path, WithGpus, main_gpu=2)


@pytest.mark.parametrize("shares", [["a"], "3,1", None, 1, [np.nan, 1], [np.inf], [-1, 2], [True]])
def test_shares_that_are_none_are_refused_with_and_without_a_gpu(path: Path, gpus: Any, shares: Any) -> None:
    for free in ([PLENTY], []):
        gpus(free)
        with pytest.raises(OptionError, match="tensor_split"):
            load(path, WithGpus, tensor_split=shares)


def test_shares_are_a_list_an_array_or_a_generator(path: Path, gpus: Any) -> None:
    gpus([PLENTY, PLENTY])
    for shares in ([3, 2], np.array([3, 2], np.float32), (share for share in (3, 2))):
        with load(path, WithGpus, **SIZES, tensor_split=shares) as llm:
            placed = [sum(bool(layer.size) for layer in gpu.weights) for gpu in llm.memory().gpus]
            assert placed == [3, 2]


def test_memory_is_logged_when_a_model_has_opened_and_when_it_is_refused(
    path: Path, gpus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gpus([PLENTY])
    with caplog.at_level(logging.INFO), load(path, WithGpus, **SIZES) as llm:
        told = [record.message for record in caplog.records if hasattr(record, "memory")]
        assert any(
            line.startswith("FAKE:0: ") and "weights of layers 0..4, allocated" in line for line in told
        )
        assert told[-1] == f"total: {llm.memory().total() / 1024**2:.1f} MiB"
    caplog.clear()
    with caplog.at_level(logging.INFO), pytest.raises(NoMemoryError):
        load(path, WithGpus, **SIZES, params=BackendParams(max_memory={CPU: 1}))
    assert any("failed" in record.message for record in caplog.records if hasattr(record, "memory"))
