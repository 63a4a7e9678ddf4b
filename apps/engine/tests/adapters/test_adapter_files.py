"""Adapters in files: they change a model as merged weights do, or are refused with what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from adapter_files import CLOSE, HALF, merged, nmse, random_pairs, write_adapter
from model_files import stored
from small_llama import write_small_llama

import backbay
from backbay import ModelFileError, OptionError
from backbay_engine import estimate, load

IDS = [1, 5, 17, 60, 31, 8, 20]


@pytest.mark.parametrize("beside", [True, False], ids=["beside", "chosen"])
@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_two_adapters_with_scales_are_as_merged_weights(
    path: Path, tmp_path: Path, backend: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not beside:
        monkeypatch.setattr("backbay_engine.adapters.stack.BESIDE", 0)
    first, second = random_pairs(path, 4, 1), random_pairs(path, 8, 2, matrices=("attn_q", "ffn_down"))
    files = {
        "a": write_adapter(tmp_path / "a.gguf", first, alpha=8),
        "b": write_adapter(tmp_path / "b.gguf", second, alpha=4),
    }
    mixes = {"a": [(first, 2.0)], "b": [(second, 0.5)], "both": [(first, 1.0), (second, 0.75)]}
    choices: dict[str, Any] = {"a": "a", "b": {"b": 1}, "both": {"a": 0.5, "b": 1.5}}
    with load(path, backend, adapters=files, kv_dtype="f32") as llm:
        found = {name: llm.logits(IDS, adapter=choice) for name, choice in choices.items()}
        plain = llm.logits(IDS)
    with load(path, backend, kv_dtype="f32") as llm:
        np.testing.assert_array_equal(plain, llm.logits(IDS))
    for name, parts in mixes.items():
        with load(merged(path, tmp_path / f"{name}.m.gguf", *parts), backend, kv_dtype="f32") as llm:
            assert nmse(found[name], llm.logits(IDS)) < CLOSE < nmse(plain, llm.logits(IDS))


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_factors_in_f16_and_quantized_ones_change_quantized_weights(tmp_path: Path, backend: str) -> None:
    kind = gguf.GGMLQuantizationType.Q8_0
    model = write_small_llama(tmp_path / "m.gguf", dtype=kind)
    pairs = random_pairs(model, 32, 3)
    for dtype in (HALF, kind):
        rounded = {
            name: tuple(gguf.quants.dequantize(gguf.quants.quantize(p, dtype), dtype) for p in pair)
            for name, pair in pairs.items()
        }
        file = write_adapter(tmp_path / f"{dtype.name}.gguf", pairs, alpha=32, dtype=dtype)
        with load(model, backend, adapters={"a": file}, kv_dtype="f32") as llm:
            found, plain = llm.logits(IDS, adapter="a"), llm.logits(IDS)
        with load(merged(model, tmp_path / "merged.gguf", (rounded, 1.0)), "cpu_ref", kv_dtype="f32") as llm:
            wanted = llm.logits(IDS)
        assert nmse(found, wanted) < 1e-3 < nmse(plain, wanted)  # the model's products are of q8_0


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_factors_of_experts(tmp_path: Path, backend: str) -> None:
    model = stored("qwen3moe")
    names = ("attn_q", "ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    first, second = (random_pairs(model, rank, rank, matrices=names) for rank in (4, 2))
    files = {
        name: write_adapter(tmp_path / f"{name}.gguf", pairs, alpha=4, architecture="qwen3moe")
        for name, pairs in (("a", first), ("b", second))
    }
    assert any(down.ndim == 3 for down, _ in first.values())
    with load(model, backend, adapters=files, kv_dtype="f32") as llm:
        found, plain = llm.logits(IDS, adapter={"a": 1, "b": 0.5}), llm.logits(IDS)
    whole = merged(model, tmp_path / "merged.gguf", (first, 1.0), (second, 1.0))
    with load(whole, backend, kv_dtype="f32") as llm:
        wanted = llm.logits(IDS)
    assert nmse(found, wanted) < 1e-3 < nmse(plain, wanted)


# -- refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda pairs: {"blk.7.attn_q.weight": pairs["blk.1.attn_q.weight"]},
            r"'blk.7.attn_q.weight'.*nearest: 'blk.1.attn_q.weight'",
        ),
        (lambda pairs: {"token_embd.weight": pairs["output.weight"]}, "'token_embd.weight'"),
        (lambda pairs: {"blk.0.attn_norm.weight": pairs["blk.0.attn_q.weight"]}, "'blk.0.attn_norm.weight'"),
        (lambda pairs: {"blk.0.attn_q.weight": pairs["blk.0.attn_k.weight"]}, r"\[32, 32\].*\[32, 16\]"),
        (
            lambda pairs: {"blk.0.attn_q.weight": (np.ones((3, 32), "f"), np.ones((32, 2), "f"))},
            "factors of one rank",
        ),
        (
            lambda pairs: {"blk.0.attn_q.weight": (np.ones((2, 32), "f"), np.ones((2, 32, 2), "f"))},
            "factors of one rank",
        ),
        (
            lambda pairs: {"blk.0.attn_q.weight": (np.full((2, 32), np.nan, "f"), np.ones((32, 2), "f"))},
            "finite numbers for 'blk.0.attn_q.weight'",
        ),
        (lambda pairs: {}, "changes a matrix"),
    ],
    ids=[
        "no block",
        "a table",
        "a norm",
        "another shape",
        "two ranks",
        "experts on one side",
        "NaN",
        "nothing",
    ],
)
def test_the_first_name_or_shape_that_does_not_fit_is_told(
    path: Path, tmp_path: Path, change: Any, told: str
) -> None:
    pairs = change(random_pairs(path, 2, 1))
    file = write_adapter(tmp_path / "a.gguf", pairs, alpha=1)
    with pytest.raises(ModelFileError, match=told):
        load(path, "cpu_ref", adapters={"a": file})


def test_files_of_other_kinds_are_refused(path: Path, tmp_path: Path) -> None:
    pairs = {"blk.0.attn_q.weight": random_pairs(path, 2, 1)["blk.0.attn_q.weight"]}

    def refused(told: str, file: Path, error: type[Exception] = ModelFileError) -> None:
        with pytest.raises(error, match=told):
            load(path, "cpu_ref", adapters={"a": file})

    refused("'adapter'.*general.type", path)
    refused("nothing", tmp_path / "none.gguf")
    refused(
        "adapter.type", write_adapter(tmp_path / "1", pairs, alpha=1, metadata={"adapter.type": "control"})
    )
    refused(
        "'llama'.*general.architecture.*'gemma3'",
        write_adapter(tmp_path / "2", pairs, alpha=1, architecture="gemma3"),
    )
    alone = gguf.GGUFWriter(tmp_path / "3", "llama")
    for key, value in (("general.type", "adapter"), ("adapter.type", "lora")):
        alone.add_string(key, value)
    alone.add_float32("adapter.lora.alpha", 1.0)
    alone.add_tensor("blk.0.attn_q.weight.lora_a", np.ones((2, 32), np.float32))
    alone.write_header_to_file()
    alone.write_kv_data_to_file()
    alone.write_tensors_to_file()
    alone.close()
    refused("pairs of tensors.*'blk.0.attn_q.weight.lora_a'", tmp_path / "3")
    with pytest.raises(OptionError, match="files or folders by name"):
        load(path, "cpu_ref", adapters=["a.gguf"])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="without a colon"):
        load(path, "cpu_ref", adapters={"a:b": tmp_path / "3"})


def test_adapters_are_booked(path: Path, tmp_path: Path) -> None:
    pairs = random_pairs(path, 8, 1)
    file = write_adapter(tmp_path / "a.gguf", pairs, alpha=1)
    nbytes = sum(part.nbytes for pair in pairs.values() for part in pair)
    plain, more = (estimate(path, "cpu_ref", adapters=each).total() for each in (None, {"a": file}))
    with load(path, "cpu_ref", adapters={"a": file}) as llm:
        assert llm.memory().total() == more
    assert nbytes <= more - plain
