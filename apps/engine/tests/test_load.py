"""Opening a model: arguments, refusals, and nothing left behind."""

from __future__ import annotations

import threading
from pathlib import Path

import gguf
import numpy as np
import pytest
from model_files import changed
from small_llama import EOS, write_small_llama

import backbay
from backbay import BackbayError, BackendParams, CancelledError, ClosedError, ModelFileError, NoMemoryError
from backbay_engine import RequestError, estimate, load
from backbay_engine.port.options import NAMES, LoadFields

BACKENDS = sorted(backbay.backends())
MODELS = Path(__file__).parent / "data/models"
ENDLESS = {"logit_bias": {EOS: float("-inf")}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_estimate_is_what_loading_takes(path, backend):
    sizes = {"context": 100, "parallel": 2, "batch": 32, "params": BackendParams(num_threads=1)}
    told = estimate(path, backend, **sizes)
    assert told.allocated() == 0
    with load(path, backend, **sizes) as llm:
        taken = llm.memory()
    assert [m.size for m in told.cpu.cache] == [m.size for m in taken.cpu.cache]
    assert told.total() == pytest.approx(taken.total(), rel=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_opened_runs_within_what_was_reserved(path, backend):
    sizes = {"context": 200, "parallel": 2, "batch": 64}
    told = estimate(path, backend, params=BackendParams(num_threads=1), **sizes)
    limit = {told.cpu.id: round(told.total() * 1.01)}
    with load(path, backend, params=BackendParams(num_threads=1, max_memory=limit), **sizes) as llm:
        handles = [llm.submit([n] * 190, max_tokens=9 + n, temperature=0, **ENDLESS) for n in range(5)]
        assert [len(handle.result().tokens) for handle in handles] == [9, 10, 11, 11, 11]


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_little_memory_is_an_error_that_tells_of_what(path, backend):
    with backbay.open(path, backend) as plain:
        device, weights = plain.devices()[0].id, plain.memory().total()
    limited = BackendParams(max_memory={device: weights + 50_000}, num_threads=1)
    with pytest.raises(NoMemoryError) as refused:
        load(path, backend, context=256, parallel=64, params=limited)
    assert refused.value.memory.cpu.id == device
    with load(path, backend, context=64, batch=4, num_threads=1) as llm:  # life goes on
        assert llm.generate("x", max_tokens=1).tokens


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"context": 1}, r"context must be an integer in \[2, 1073741824\], got 1"),
        ({"context": 2.5}, "context must be"),
        ({"parallel": 0}, "parallel must be"),
        ({"batch": 0}, "batch must be"),
        ({"kv_dtype": "f8"}, "kv_dtype must be f32, f16, bf16, q8_0 or q4_0, got 'f8'"),
        ({"kv_dtype": 16}, "kv_dtype must be f32, f16, bf16, q8_0 or q4_0, got 16"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(path, sizes, told):
    with pytest.raises(RequestError, match=told):
        load(path, "cpu_ref", **sizes)


def test_a_cache_dtype_that_the_backend_cannot_hold_is_refused(path):
    with backbay.open(None, "onnx") as backend:
        held = {dtype.name.lower() for dtype in backend.cache_config().dtypes}
    for name in {"f32", "f16", "bf16", "q8_0", "q4_0"} - held:
        with pytest.raises(BackbayError, match=name):
            load(path, "onnx", context=64, kv_dtype=name)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.few(6)
def test_all_cache_dtypes_that_a_backend_holds_give_answers(tmp_path, backend, dtype):
    path = write_small_llama(tmp_path / "wide.gguf", head=32)  # a block of q8_0
    with backbay.open(None, backend) as plain:
        if dtype not in {held.name.lower() for held in plain.cache_config().dtypes}:
            pytest.skip(f"{backend} holds no {dtype}")
    with load(path, "cpu_ref", context=64, kv_dtype="f32") as exact:
        expected = exact.logits(range(40))
    with load(path, backend, context=64, kv_dtype=dtype, num_threads=1) as llm:
        found = llm.logits(range(40))
    nmse = ((found - expected) ** 2).mean() / (expected**2).mean()
    assert nmse < {"f32": 1e-5, "f16": 1e-5, "bf16": 1e-3, "q8_0": 1e-3, "q4_0": 0.3}[dtype]


@pytest.mark.fault("the architecture of a file is unknown", "an error naming it and the known ones")
def test_an_architecture_that_nobody_knows_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "lama")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BackbayError, match=r"lama.*llama"):
        load(tmp_path / "other.gguf", "cpu_ref")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_without_a_vocabulary_takes_and_gives_tokens(backend):
    with load(MODELS / "qwen2.gguf", backend, context=64, num_threads=1) as llm:
        scores = llm.logits([1, 2, 3])
        answer = llm.generate([1, 2, 3], max_tokens=4, temperature=0)
        assert (answer.text, answer.finish_reason) == ("", "length")
        assert answer.tokens[0] == scores[-1].argmax()
        for refused in (
            lambda: llm.generate("text"),
            lambda: llm.generate([1], stop="x"),
            lambda: llm.tokenizer,
        ):
            with pytest.raises(RequestError, match="the file has no vocabulary"):
                refused()
    with load(MODELS / "bert-mean.gguf", backend, num_threads=1) as llm:
        assert llm.embed([[1, 2, 3], [4]]).shape[0] == 2


@pytest.mark.parametrize("length", [0, 1])
def test_a_file_that_knows_no_context_is_refused(tmp_path, length):
    path = changed("qwen2", tmp_path / "short.gguf", metadata={"qwen2.context_length": length})
    with pytest.raises(
        ModelFileError, match=rf"expected a whole number from 2 .*context_length.*, found .*{length}"
    ):
        load(path, "cpu_ref")


@pytest.mark.fault("tensors of a file are missing", "ModelFileError naming all of them")
def test_all_missing_tensors_are_named_at_once(tmp_path, path):
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(tmp_path / "less.gguf", "llama")
    for field in reader.fields.values():
        if field.name.startswith("llama."):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(field.name, value)
    for tensor in reader.tensors:
        if tensor.name not in ("blk.1.attn_q.weight", "blk.0.ffn_norm.weight"):
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelFileError) as refused:
        load(tmp_path / "less.gguf", "cpu_ref")
    assert "blk.1.attn_q.weight" in str(refused.value)
    assert "blk.0.ffn_norm.weight" in str(refused.value)


@pytest.mark.fault("a load is cancelled", "CancelledError")
def test_loading_can_be_cancelled(path):
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(CancelledError):
        load(path, "cpu_ref", context=64, cancel=cancel)


def test_progress_goes_from_nothing_to_all(path):
    seen: list[float] = []
    load(path, "cpu_ref", context=64, progress=seen.append).close()
    assert seen[0] == 0.0
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_a_backend_that_is_gone_is_an_error(path):
    llm = load(path, "cpu_ref", context=64)
    llm.backend.close()
    with pytest.raises(ClosedError):
        llm.generate("hello")
    llm.close()


@pytest.mark.fault("a model is dropped without `close`", "its memory is freed")
def test_a_model_that_was_dropped_frees_itself(path):
    llm = load(path, "cpu_ref", context=64)
    llm.generate("x", max_tokens=1)
    backend, thread = llm.backend, llm.runner._thread
    del llm
    assert backend.closed
    assert not thread.is_alive()


def test_a_generating_model_makes_no_embeddings(path):
    with load(path, "cpu_ref", context=64) as llm, pytest.raises(RequestError, match="generates text"):
        llm.embed("x")


def test_type_checkers_know_the_options_of_loading():
    assert sorted(LoadFields.__annotations__) == sorted(NAMES)


@pytest.mark.parametrize(("name", "near"), [("contxt", "context"), ("num_thread", "num_threads")])
def test_an_unknown_option_of_loading_is_named_with_the_nearest(path, name, near):
    with pytest.raises(TypeError, match=f"unknown option '{name}'; nearest: .*'{near}'"):
        load(path, **{name: 1})
