"""From a model that transformers saved to a GGUF file as llama.cpp's converter writes it, but for the tokenizer.

    python tests/tools/hf_to_gguf.py FOLDER FILE --dtype f16

The tokenizer is written by who has one: a file of these has `no_vocab`, and is run with token ids.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "bert": "bert",
}
ALWAYS_F32 = ("_norm.weight", "ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")


def convert(
    folder: Path,
    path: Path,
    dtype: str = "f32",
    *,
    metadata: Mapping[str, Any] | None = None,
    vocabulary: bool = True,
) -> None:
    """Write the model of a folder; `metadata` are further keys, with the architecture in front of each."""
    config = json.loads((folder / "config.json").read_text())
    config = {**config, **config.get("text_config", {})}
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in _metadata(architecture, config).items():
        _add(writer, f"{architecture}.{key}", value)
    for key, value in (metadata or {}).items():
        _add(writer, f"{architecture}.{key}", value)
    if vocabulary:
        writer.add_tokenizer_model("no_vocab")
        if architecture == "bert":
            writer.add_token_type_count(config["type_vocab_size"])
    for name, array, kind in _tensors(architecture, config, _load(folder), dtype):
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _load(folder: Path) -> Tensors:
    from safetensors.torch import load_file

    return {
        name: tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        for file in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# -- metadata --------------------------------------------------------------------------------------------


def _metadata(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    ropes = config.get("rope_parameters") or config.get("rope_scaling") or {}
    found = {
        "vocab_size": config["vocab_size"],
        "block_count": config["num_hidden_layers"],
        "context_length": config.get("max_position_embeddings"),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps"),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        **_stretch(ropes.get("full_attention", ropes)),
        "rope.freq_base_swa": ropes.get("sliding_attention", {}).get("rope_theta"),
        **_own(architecture, config),
    }
    return {key: value for key, value in found.items() if value is not None}


def _stretch(rope: dict[str, Any]) -> dict[str, Any]:
    found = {"rope.freq_base": rope.get("rope_theta")}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]}
    if kind == "yarn":
        found |= {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_attn_factor": rope.get("attention_factor"),
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
            "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        }
    return found


def _own(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """What each class of the converter adds."""
    if architecture == "llama":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return {"rope.dimension_count": width}
    if architecture == "qwen3moe":
        return {"expert_feed_forward_length": config["moe_intermediate_size"]}
    if architecture == "gemma3":
        window = config["sliding_window"] if config.get("sliding_window_pattern") != 1 else None
        return {
            "attention.sliding_window": window,
            "final_logit_softcapping": config.get("final_logit_softcapping"),
        }
    if architecture == "gpt-oss":
        return {
            "attention.sliding_window": config["sliding_window"],
            "expert_feed_forward_length": config["intermediate_size"],
        }
    if architecture == "bert":
        return {"attention.causal": False}
    return {}


# -- tensors ---------------------------------------------------------------------------------------------


def _tensors(
    architecture: str, config: dict[str, Any], tensors: Tensors, dtype: str
) -> Iterator[tuple[str, NDArray[Any], Any]]:
    """Name, data and type of each tensor of the file."""
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, array in _renamed(architecture, config, tensors):
        full = name
        if not name.startswith(("blk.", "rope_freqs")):
            full = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if full is None:
                raise KeyError(f"{architecture}: the converter knows no tensor {name}")
        experts = "_exps.weight" in full
        wanted = "mxfp4" if architecture == "gpt-oss" and experts and dtype != "f32" else dtype
        if array.ndim < 2 or not full.endswith(".weight") or full.endswith(ALWAYS_F32) or wanted == "f32":
            yield full, np.ascontiguousarray(array, np.float32), None
        elif wanted == "f16":
            yield full, array.astype(np.float16), None
        else:
            quantized = gguf.GGMLQuantizationType[wanted.upper()]
            yield full, gguf.quants.quantize(np.ascontiguousarray(array, np.float32), quantized), quantized


def _renamed(
    architecture: str, config: dict[str, Any], tensors: Tensors
) -> Iterator[tuple[str, NDArray[Any]]]:
    """What the converter's `modify_tensors` and `generate_extra_tensors` make of the tensors."""
    if architecture == "llama":
        yield from _rope_factors(config)
    experts: dict[str, dict[int, NDArray[Any]]] = {}
    tied = config.get("tie_word_embeddings") and architecture != "bert"
    for name, array in tensors.items():
        if (tied and name == "lm_head.weight") or name.startswith("pooler."):
            continue
        head, middle, tail = name.partition(".experts.")
        number, _, rest = tail.partition(".")
        if middle and number.isdecimal():
            experts.setdefault(f"{head}.experts.{rest}", {})[int(number)] = array
        elif architecture == "gpt-oss":
            yield from _gpt_oss(name, array)
        else:
            yield name, _changed(architecture, config, name, array)
    for name, parts in experts.items():
        stacked = np.stack([parts[n] for n in range(len(parts))])
        old = "block_sparse_moe" in name
        yield (
            name.replace("model.layers.", "layers.").replace("block_sparse_moe", "feed_forward")
            if old
            else name,
            stacked,
        )


def _changed(architecture: str, config: dict[str, Any], name: str, array: NDArray[Any]) -> NDArray[Any]:
    if architecture == "llama" and name.endswith(("q_proj.weight", "q_proj.bias")):
        return permuted(array, config["num_attention_heads"])
    if architecture == "llama" and name.endswith(("k_proj.weight", "k_proj.bias")):
        return permuted(array, config["num_key_value_heads"])
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return array + 1
    return array


def permuted(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Pairs of the rotary embedding side by side, where transformers has them in halves of a head."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _gpt_oss(name: str, array: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    if name.endswith("sinks"):
        yield f"{name}.weight", array
    elif "gate_up_proj" in name:
        biases = name.endswith("_bias")
        array = array if biases else array.swapaxes(-1, -2)
        new = (
            name.replace("gate_up_proj_bias", "{}.bias")
            if biases
            else name.replace("gate_up_proj", "{}.weight")
        )
        for part, of_it in (("gate_proj", np.s_[:, ::2]), ("up_proj", np.s_[:, 1::2])):
            yield new.format(part), array[of_it]
    elif name.endswith("experts.down_proj"):
        yield f"{name}.weight", array.swapaxes(-1, -2)
    else:
        yield name.replace("down_proj_bias", "down_proj.bias"), array


def _rope_factors(config: dict[str, Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """What Llama 3 divides frequencies by."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") != "llama3":
        return
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    original, factors = rope["original_max_position_embeddings"], []
    for n in range(0, width, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (n / width)
        if length < original / high:
            factors.append(1.0)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    yield "rope_freqs.weight", np.array(factors, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="f32")
    args = parser.parse_args()
    convert(args.folder, args.file, args.dtype)


if __name__ == "__main__":
    main()
