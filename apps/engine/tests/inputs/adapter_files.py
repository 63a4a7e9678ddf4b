"""Adapters with random factors for the tests' models, as GGUF files and as folders of PEFT, and models merged with them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from model_files import changed, tensors_of
from numpy.typing import NDArray

Pair = tuple[NDArray[np.float32], NDArray[np.float32]]
"""down, (rank, in), and up, (out, rank), with experts in front."""
CLOSE = 1e-9  # a mean square error over the mean square
HALF = gguf.GGMLQuantizationType.F16
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def random_pairs(
    model: Path, rank: int, seed: int, *, matrices: tuple[str, ...] = MATRICES, size: float = 0.3
) -> dict[str, Pair]:
    """Factors for some matrices of all blocks, and for the head; products are about `size` times the matrix."""
    rng, pairs = np.random.default_rng(seed), dict[str, Pair]()
    for name, weight in tensors_of(model).items():
        parts = name.split(".")
        if name != "output.weight" and not (parts[-1] == "weight" and parts[-2] in matrices):
            continue
        *experts, out, inner = weight.shape
        scale = np.sqrt(size * weight.std() / np.sqrt(rank))
        down, up = (rng.standard_normal((*experts, *shape)) * scale for shape in ((rank, inner), (out, rank)))
        pairs[name] = down.astype(np.float32), up.astype(np.float32)
    return pairs


def write_adapter(
    path: Path,
    pairs: Mapping[str, Pair],
    *,
    alpha: float,
    architecture: str = "llama",
    dtype: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    metadata: Mapping[str, str] = {},
) -> Path:
    """A file as llama.cpp's convert_lora_to_gguf.py writes it."""
    writer = gguf.GGUFWriter(path, architecture)
    values = {"general.type": "adapter", "adapter.type": "lora", **metadata}
    for key, value in values.items():
        writer.add_string(key, value)
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, pair in pairs.items():
        for suffix, part in zip(("lora_a", "lora_b"), pair, strict=True):
            data = gguf.quants.quantize(part, dtype)
            writer.add_tensor(f"{name}.{suffix}", data, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_peft(
    folder: Path, modules: Mapping[str, Pair], config: Mapping[str, Any], further: Mapping[str, Any] = {}
) -> Path:
    """A folder as PEFT writes it, with the factors of modules by their names in transformers."""
    tensors = {
        f"base_model.model.{module}.lora_{letter}.weight": part
        for module, pair in modules.items()
        for letter, part in zip("AB", pair, strict=True)
    }
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "bias": "none", **config}))
    header, at = dict[str, Any](), 0
    for name, part in {**tensors, **further}.items():
        header[name] = {"dtype": "F32", "shape": part.shape, "data_offsets": [at, at + part.nbytes]}
        at += part.nbytes
    told = json.dumps(header).encode()
    body = b"".join(np.ascontiguousarray(part, "<f4").tobytes() for part in {**tensors, **further}.values())
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(told)) + told + body)
    return folder


def merged(model: Path, target: Path, *parts: tuple[Mapping[str, Pair], float]) -> Path:
    """A model with W + scale * up @ down in place of each W."""
    weights = tensors_of(model)
    for pairs, scale in parts:
        for name, (down, up) in pairs.items():
            weights[name] = weights[name] + np.float32(scale) * (up @ down)
    return changed(model, target, tensors=weights)


def nmse(found: NDArray[Any], wanted: NDArray[Any]) -> float:
    return float(((found - wanted) ** 2).mean() / (wanted**2).mean())
