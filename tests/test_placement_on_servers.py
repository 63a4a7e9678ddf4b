"""A model of the engine lies on a device of ggml's as far as that has room."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rpc_servers import serving
from small_llama import write_small_llama
from small_vision import write_small_vision

from backbay import BackendMemory, BackendParams
from backbay_engine import estimate, load
from backbay_engine.local.opening import placement
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import load_library

pytestmark = pytest.mark.skipif(
    load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL, reason="this library has no RPC"
)
SIZES = {"context": 256, "parallel": 2, "batch": 32}
REMOTE = "RPC:0"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serving() as server:
        yield server.endpoint


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf", layers=4)


@pytest.mark.parametrize("worker", [False, True])
def test_layers_lie_on_a_server_as_far_as_it_has_room(path: Path, endpoint: str, worker: bool) -> None:
    options = {"rpc": endpoint}
    whole = estimate(path, "ggml", params=BackendParams(options=options), **SIZES).gpus[0]
    assert whole.id == REMOTE and all(layer.size for layer in whole.weights)
    params = BackendParams(max_memory={REMOTE: whole.total() - 1}, options=options)
    with load(path, "cpu_ref", **SIZES) as reference:
        wanted = reference.logits([1, 2, 3])
    with load(path, "ggml", params=params, worker=worker, **SIZES) as llm:
        placed = [bool(layer.size) for layer in llm.memory().gpus[0].weights]
        assert placed[-1] and not placed[0]
        assert llm.memory().gpus[0].total() < whole.total()
        np.testing.assert_allclose(llm.logits([1, 2, 3]), wanted, rtol=0, atol=0.05 * np.abs(wanted).max())


def test_a_draft_of_fewer_layers_guesses_for_a_model_on_a_server(
    path: Path, endpoint: str, tmp_path: Path
) -> None:
    draft = write_small_llama(tmp_path / "draft.gguf", layers=2)
    params = BackendParams(options={"rpc": endpoint})
    for layers in (None, 2, 0):
        with load(path, "ggml", params=params, draft=draft, num_gpu_layers=layers, **SIZES) as llm:
            memory = llm.memory()
        placed = [sum(bool(layer.size) for layer in each.gpus[0].weights) for each in (memory, memory.draft)]
        assert placed == {None: [5, 3], 2: [2, 3], 0: [0, 0]}[layers]


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_layers_stay_on_a_server_that_takes_less_than_it_says(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    path = write_small_llama(tmp_path / "deep.gguf", layers=12)
    options = {"rpc": endpoint}
    whole = estimate(path, "ggml", params=BackendParams(options=options), **SIZES).gpus[0].total()
    params = BackendParams(max_memory={REMOTE: round(share * whole)}, options=options)

    def layers(memory: BackendMemory) -> int:
        return sum(bool(layer.size) for layer in memory.gpus[0].weights)

    fitting = layers(estimate(path, "ggml", params=params, **SIZES))
    monkeypatch.setattr(placement, "rooms", lambda gpus, limits: {gpu.id: whole for gpu in gpus})
    with load(path, "ggml", params=params, **SIZES) as llm:
        assert fitting - 1 <= layers(llm.memory()) <= fitting


def test_an_encoder_with_parameters_of_its_own_leaves_a_server_that_is_short(
    endpoint: str, tmp_path: Path
) -> None:
    text, projector = write_small_vision(tmp_path, "llava")
    params = BackendParams(options={"rpc": endpoint})
    files = {"path": text, "backend": "ggml", "projector": projector, "context": 64, "params": params}
    whole = estimate(**files).encoder.gpus[0].total()
    with load(**files, encoder_params=replace(params, max_memory={REMOTE: whole - 1})) as llm:
        assert llm.memory().encoder.gpus[0].total() == 0
