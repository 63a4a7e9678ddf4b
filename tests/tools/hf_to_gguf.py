"""Converts a model saved by transformers to GGUF as llama.cpp's converter does, without the tokenizer.

    python tests/tools/hf_to_gguf.py FOLDER FILE --dtype f16

The files have `no_vocab` instead of a tokenizer, and run with token ids.
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
    "xlm-roberta": "bert",
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
        "context_length": config["max_position_embeddings"] - _unused_positions(config),
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
        **_stretch(ropes.get("full_attention", ropes), config),
        "rope.freq_base_swa": ropes.get("sliding_attention", {}).get("rope_theta"),
        **_windows(architecture, config),
        **_own(architecture, config),
    }
    return {key: value for key, value in found.items() if value is not None}


def _unused_positions(config: dict[str, Any]) -> int:
    """The number of unused positions: RoBERTa's positions begin after the id of the padding token."""
    return config["pad_token_id"] + 1 if "roberta" in config["model_type"] else 0


def _stretch(rope: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The metadata of context extension. The kind `dynamic` has no effect up to the context's length."""
    found = {"rope.freq_base": rope.get("rope_theta")}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in ("linear", "yarn", "longrope"):
        found["rope.scaling.type"] = kind
    if kind in ("yarn", "longrope"):
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if kind in ("linear", "yarn"):
        found["rope.scaling.factor"] = rope["factor"]
    if kind == "longrope":
        found["rope.scaling.attn_factor"] = _longrope_magnitude(rope, config)
    if kind == "yarn":
        found |= {
            "rope.scaling.yarn_attn_factor": _yarn_magnitude(rope),
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
            "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        }
    return found


def _longrope_magnitude(rope: dict[str, Any], config: dict[str, Any]) -> float:
    """The magnification of queries and keys."""
    original = rope["original_max_position_embeddings"]
    factor = rope.get("factor") or config["max_position_embeddings"] / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    given = rope.get("attention_factor")
    return float(usual if given is None else given)


def _yarn_magnitude(rope: dict[str, Any]) -> float | None:
    given, both = rope.get("attention_factor"), (rope.get("mscale"), rope.get("mscale_all_dim"))
    if given is not None or not all(both):
        return given
    each, all_dimensions = (1 + 0.1 * scale * math.log(max(1, rope["factor"])) for scale in both)
    return each / all_dimensions


def _windows(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """The layers with a window; written for each layer if they differ from the architecture's pattern."""
    count, window = config["num_hidden_layers"], config.get("sliding_window")
    if not window or (architecture.startswith("qwen") and not config.get("use_sliding_window")):
        return {}
    kinds = config.get("layer_types") or ["sliding_attention"] * count
    slides, usual = [kind == "sliding_attention" for kind in kinds], {"gemma3": 6, "gpt-oss": 2}
    if not any(slides):
        return {}
    pattern = usual.get(architecture)
    if pattern and slides == [(n + 1) % pattern != 0 for n in range(count)]:
        return {"attention.sliding_window": window}
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": slides}


def _own(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """The metadata that each class of the converter adds."""
    if architecture == "llama":
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        return {"rope.dimension_count": width}
    if architecture == "qwen3moe":
        return {
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_weights_norm": config["norm_topk_prob"],
        }
    if architecture == "gemma3":
        return {
            "attention.scale": config["query_pre_attn_scalar"] ** -0.5,
            "final_logit_softcapping": config.get("final_logit_softcapping"),
        }
    if architecture == "gpt-oss":
        return {"expert_feed_forward_length": config["intermediate_size"]}
    if architecture == "bert":
        return {"attention.causal": False}
    return {}


# -- tensors ---------------------------------------------------------------------------------------------


def _tensors(
    architecture: str, config: dict[str, Any], tensors: Tensors, dtype: str
) -> Iterator[tuple[str, NDArray[Any], Any]]:
    """Name, data and type of each tensor in the file."""
    names = _names(architecture, config["num_hidden_layers"])
    plain = _names("qwen3", config["num_hidden_layers"])  # for layers without experts in a qwen3moe
    for name, array in _renamed(architecture, config, tensors):
        full = name
        if not name.startswith("rope_f"):
            suffixes = (".weight", ".bias")
            full = names.get_name(name, suffixes) or plain.get_name(name, suffixes)
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


def _names(architecture: str, layers: int) -> gguf.TensorNameMap:
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, layers)


def _renamed(
    architecture: str, config: dict[str, Any], tensors: Tensors
) -> Iterator[tuple[str, NDArray[Any]]]:
    """The tensors, changed as in the converter's `modify_tensors` and `generate_extra_tensors`."""
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
    if name == "embeddings.position_embeddings.weight":
        return array[_unused_positions(config) :]
    if architecture == "gemma3" and name.endswith("norm.weight"):
        return array + 1
    return array


def permuted(array: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows reordered: pairs of the rotary embedding become adjacent; in transformers they span the halves of a head."""
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
    """The frequency factors: of Llama 3, or for short and long contexts."""
    ropes = config.get("rope_parameters") or {}
    rope = ropes.get("full_attention", ropes)
    kind = rope.get("rope_type")
    if kind == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, config)
    if kind == "longrope":
        for which in ("short", "long"):
            yield f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32)


def _llama3_factors(rope: dict[str, Any], config: dict[str, Any]) -> NDArray[np.float32]:
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
    return np.array(factors, np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--dtype", default="f32")
    args = parser.parse_args()
    convert(args.folder, args.file, args.dtype)


if __name__ == "__main__":
    main()
