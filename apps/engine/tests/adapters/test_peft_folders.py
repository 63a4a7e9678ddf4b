"""Adapters in PEFT's folders change models as merged folders do; what they cannot be is refused by name."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import CLOSE, Pair, nmse, random_pairs, write_peft
from model_files import KINDS, unpacked, unpacked_folder
from numpy.typing import NDArray

from backbay import ModelFileError
from backbay_engine import load

IDS = [5, 6, 7, 20, 30]
OTHERS = re.compile(r"embed|norm|wte|wpe|conv|router|^lm_head")
RANK, ALPHA = 4, 8


def linear_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    """The matrices of a folder's modules, by the modules' names."""
    raw = next(folder.glob("*.safetensors")).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    found = {}
    for name, row in json.loads(raw[8 : 8 + length]).items():
        if name.endswith(".weight") and len(row["shape"]) == 2 and not OTHERS.search(name):
            begin, end = (8 + length + at for at in row["data_offsets"])
            found[name.removesuffix(".weight")] = np.frombuffer(raw[begin:end], "<f4").reshape(row["shape"])
    return found


def rewritten(folder: Path, target: Path, changes: dict[str, NDArray[Any]]) -> Path:
    """A copy of a folder with other weights of some modules."""
    shutil.copytree(folder, target)
    file = next(target.glob("*.safetensors"))
    raw = bytearray(file.read_bytes())
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    for module, weight in changes.items():
        begin, end = (8 + length + at for at in header[f"{module}.weight"]["data_offsets"])
        raw[begin:end] = np.ascontiguousarray(weight, "<f4").tobytes()
    file.write_bytes(raw)
    return target


def factors_for(weights: dict[str, NDArray[np.float32]], *, columns: bool) -> dict[str, Pair]:
    rng, pairs = np.random.default_rng(5), dict[str, Pair]()
    for module, weight in weights.items():
        out, inner = weight.shape[::-1] if columns else weight.shape
        size = np.sqrt(weight.std() / 4)
        down, up = (rng.standard_normal(shape) * size for shape in ((RANK, inner), (out, RANK)))
        pairs[module] = down.astype(np.float32), up.astype(np.float32)
    return pairs


@pytest.mark.parametrize(
    "kind", ["llama", "gpt2", "cohere2", "gemma2", "phi3-long", "erniemoe", "granitemoe", "mamba2"]
)
def test_folder_changes_a_model_as_merged_weights_do(kind: str, tmp_path: Path) -> None:
    """Rows in another order, joint matrices, experts one by one, weights that a module holds the other way round."""
    folder, columns = unpacked_folder(kind, tmp_path), kind == "gpt2"
    weights = linear_weights(folder)
    pairs = factors_for(weights, columns=columns)
    peft = write_peft(tmp_path / "peft", pairs, {"r": RANK, "lora_alpha": ALPHA})
    deltas = {module: ALPHA / RANK * (up @ down) for module, (down, up) in pairs.items()}
    whole = {module: weights[module] + (each.T if columns else each) for module, each in deltas.items()}
    with load(rewritten(folder, tmp_path / "merged", whole), "cpu_ref", kv_dtype="f32") as llm:
        wanted = llm.logits(IDS)
    for model in (folder, unpacked(kind, tmp_path)):
        with load(model, "cpu_ref", adapters={"a": peft}, kv_dtype="f32") as llm:
            assert nmse(llm.logits(IDS, adapter="a"), wanted) < CLOSE < nmse(llm.logits(IDS), wanted)


def test_ranks_and_scales_by_pattern_and_stabilized(tmp_path: Path) -> None:
    folder = unpacked_folder("llama", tmp_path)
    weights = linear_weights(folder)
    pairs = factors_for(weights, columns=False)
    key = next(module for module in pairs if module.endswith("0.self_attn.k_proj"))
    pairs[key] = pairs[key][0][:2], pairs[key][1][:, :2]
    config = {
        "r": RANK,
        "lora_alpha": ALPHA,
        "use_rslora": True,
        "rank_pattern": {"0.self_attn.k_proj": 2},
        "alpha_pattern": {r".*\.down_proj": 3.0},
    }
    peft = write_peft(tmp_path / "peft", pairs, config)
    whole = {}
    for module, (down, up) in pairs.items():
        alpha = 3.0 if module.endswith("down_proj") else ALPHA
        whole[module] = weights[module] + np.float32(alpha / np.sqrt(len(down))) * (up @ down)
    with load(rewritten(folder, tmp_path / "merged", whole), "cpu_ref", kv_dtype="f32") as llm:
        wanted = llm.logits(IDS)
    with load(folder, "cpu_ref", adapters={"a": peft}, kv_dtype="f32") as llm:
        assert nmse(llm.logits(IDS, adapter="a"), wanted) < CLOSE


# -- refused ------------------------------------------------------------------------------------------------

QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"peft_type": "IA3"}, "'LORA'.*'IA3'"),
        ({"use_dora": True}, "use_dora: True"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save: .'lm_head'"),
        ({"bias": "all"}, "bias: 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights: 'pissa_niter_16'"),
        ({"r": 8}, "rank 2 of the factors of 'model.layers.0.self_attn.q_proj'.*8"),
        ({"lora_alpha": None}, "numbers for r, lora_alpha"),
        ({"alpha_pattern": {"q_proj": "high"}}, "alpha_pattern"),
        ({"lora_alpha": 9e18}, r"none beyond 1e\+06"),
        ({"alpha_pattern": {"q_proj": 10**400}}, r"none beyond 1e\+06"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_of_other_adapters_are_refused(
    path: Path, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    pairs = {QUERY: random_pairs(path, 2, 1)["blk.0.attn_q.weight"]}
    folder = write_peft(tmp_path / "a", pairs, {"r": 2, "lora_alpha": 2, **config})
    with pytest.raises(ModelFileError, match=told):
        load(path, "cpu_ref", adapters={"a": folder})


@pytest.mark.parametrize(
    ("change", "further", "told"),
    [
        ({"model.layers.9.self_attn.q_proj": ...}, {}, "'blk.9.attn_q.weight'"),
        ({"model.layers.0.self_attn.nowhere": ...}, {}, "nowhere"),
        ({}, {"base_model.model.lm_head.weight": np.ones((4, 4), np.float32)}, "factors of matrices alone"),
        (
            {},
            {f"base_model.model.{QUERY}.lora_magnitude_vector": np.ones(4, np.float32)},
            "lora_magnitude_vector",
        ),
        (
            {},
            {"base_model.model.model.embed_tokens.lora_embedding_A": np.ones((2, 9), np.float32)},
            "lora_embedding_A",
        ),
        ({}, {"base_model.model.x.lora_A.weight": np.ones((2, 9), np.float32)}, "both factors of 'x'"),
    ],
    ids=["block", "module", "whole weight", "DoRA", "embedding", "half"],
)
def test_tensors_of_other_adapters_are_refused(
    path: Path, tmp_path: Path, change: dict[str, Any], further: dict[str, Any], told: str
) -> None:
    pair = random_pairs(path, 2, 1)["blk.0.attn_q.weight"]
    modules = dict.fromkeys(change, pair) or {QUERY: pair}
    folder = write_peft(tmp_path / "a", modules, {"r": 2, "lora_alpha": 2}, further)
    with pytest.raises(ModelFileError, match=told):
        load(path, "cpu_ref", adapters={"a": folder})


@pytest.mark.parametrize("kind", ["gemma3n", "rwkv7"])
def test_models_whose_weights_change_together_take_no_folder(kind: str, tmp_path: Path) -> None:
    assert (KINDS / f"{kind}.hf.xz").exists()
    folder = unpacked_folder(kind, tmp_path)
    peft = write_peft(tmp_path / "a", {}, {"r": 2, "lora_alpha": 2})
    with pytest.raises(ModelFileError, match="whose weights change together"):
        load(folder, "cpu_ref", adapters={"a": peft})
