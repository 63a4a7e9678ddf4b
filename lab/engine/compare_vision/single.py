"""Model files in Ollama's layout: one file holds the text model and the encoder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from converted import write_vocabulary
from kinds import Kind
from numpy.typing import NDArray

Named = Iterable[tuple[str, NDArray[Any]]]


def write_gemma3(kind: Kind, text: Path, target: Path) -> Path:
    """The text model of a file, with the encoder of Gemma 3."""
    config = kind.model.config
    keys = {**_keys(config.vision_config), "mm.tokens_per_image": config.mm_tokens_per_image}
    return _joined(text, target, "gemma3", keys, _renamed(kind, GEMMA3, _gemma3_value))


def write_qwen25vl(kind: Kind, text: Path, target: Path) -> Path:
    """The text model of a file, with the encoder of Qwen 2.5 VL."""
    vision = kind.model.config.vision_config
    rope = kind.model.config.text_config.rope_parameters
    keys = {
        **_grid_keys(vision),
        **FORMULAS,
        "rope.mrope_section": rope["mrope_section"],
        "vision.spatial_patch_size": vision.patch_size,
        "vision.window_size": vision.window_size,
        "vision.fullatt_block_indexes": list(vision.fullatt_block_indexes),
    }
    dropped = ("qwen2vl.rope.dimension_sections", "qwen2vl.rope.dimension_count")
    return _joined(text, target, "qwen25vl", keys, _split(_renamed(kind, QWEN25VL)), dropped)


FORMULAS = {"vision.attention.layer_norm_epsilon": 1e-6, "vision.rope.freq_base": 1e4}


def _grid_keys(vision: Any) -> dict[str, Any]:
    return {
        "vision.block_count": vision.depth,
        "vision.embedding_length": vision.hidden_size,
        "vision.attention.head_count": vision.num_heads,
        "vision.num_channels": vision.in_channels,
        "vision.patch_size": vision.patch_size,
        "vision.spatial_merge_size": vision.spatial_merge_size,
        "vision.temporal_patch_size": vision.temporal_patch_size,
    }


def write_qwen3vl(kind: Kind, text: Path, target: Path) -> Path:
    """The text model of a file, with the encoder of Qwen 3 VL or 3.5."""
    vision = kind.model.config.vision_config
    name = kind.model.config.model_type.replace("_5", "5").replace("_", "")
    keys = {
        **_grid_keys(vision),
        **(FORMULAS if "qwen3vl" in name else {"vision.feed_forward_length": vision.intermediate_size}),
        "vision.deepstack_visual_indexes": list(getattr(vision, "deepstack_visual_indexes", ())),
        "vision.shortest_edge": kind.images.size["shortest_edge"],
        "vision.longest_edge": kind.images.size["longest_edge"],
        "vision.image_mean": [float(each) for each in kind.images.image_mean],
        "vision.image_std": [float(each) for each in kind.images.image_std],
    }
    tensors = (
        (each, array.reshape(-1, *array.shape[2:]) if each == "v.patch_embed.weight" else array)
        for each, array in _split(_renamed(kind, QWEN3VL))
    )
    return _joined(text, target, name, keys, tensors, [f"{name}.{key}" for key in DROPPED.get(name, ())])


DROPPED = {
    "qwen3vl": ("n_deepstack_layers",),
    "qwen3vlmoe": (
        *("n_deepstack_layers", "rope.dimension_sections"),
        *("expert_feed_forward_length", "expert_weights_norm"),
    ),
}
"""Keys of llama.cpp that Ollama's converter does not write."""


def write_llama4(kind: Kind, text: Path, target: Path) -> Path:
    """The text model of a file, with the encoder of Llama 4."""
    written, vision = kind.model.config.text_config, kind.model.config.vision_config
    keys = {
        "attention.chunk_size": written.attention_chunk_size,
        "attention.floor_scale": written.floor_scale,
        "feed_forward_length": written.intermediate_size,
        "intermediate_size": written.intermediate_size_mlp,
        "intermediate_size_moe": written.intermediate_size,
        "use_qk_norm": True,
        "vision.block_count": vision.num_hidden_layers,
        "vision.embedding_length": vision.hidden_size,
        "vision.feed_forward_length": vision.intermediate_size,
        "vision.attention.head_count": vision.num_attention_heads,
        "vision.image_size": vision.image_size,
        "vision.patch_size": vision.patch_size,
        "vision.rope.freq_base": float(vision.rope_parameters["rope_theta"]),
        "vision.layer_norm_epsilon": vision.norm_eps,
        "vision.pixel_shuffle_ratio": vision.pixel_shuffle_ratio,
    }
    dropped = ("llama4.feed_forward_length", "llama4.expert_feed_forward_length")
    return _joined(text, target, "llama4", keys, _renamed(kind, LLAMA4), dropped)


def write_mistral3(kind: Kind, text: Path, target: Path) -> Path:
    """The text model of a file, with the encoder of Mistral Small 3."""
    config = kind.model.config
    vision = config.vision_config
    given = _keys(vision)
    keys = {name: value for name, value in given.items() if not name.endswith("layer_norm_epsilon")}
    keys |= {
        "vision.attention.key_length": vision.head_dim,
        "vision.rope.freq_base": 1e4,
        "image_token_index": config.image_token_id,
        "spatial_merge_size": config.spatial_merge_size,
    }
    return _joined(text, target, "mistral3", keys, _renamed(kind, MISTRAL3))


def write_mllama(kind: Kind, target: Path) -> Path:
    """Both halves of Llama 3.2 Vision; llama.cpp has no converter of it."""
    config = kind.model.config
    text, vision = config.text_config, config.vision_config
    writer = gguf.GGUFWriter(target, "mllama")
    write_vocabulary(writer)
    writer.add_add_bos_token(True)
    keys: dict[str, Any] = {
        "vocab_size": text.vocab_size,
        "block_count": text.num_hidden_layers,
        "context_length": text.max_position_embeddings,
        "embedding_length": text.hidden_size,
        "feed_forward_length": text.intermediate_size,
        "attention.head_count": text.num_attention_heads,
        "attention.head_count_kv": text.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": text.rms_norm_eps,
        "attention.cross_attention_layers": list(text.cross_attention_layers),
        "rope.freq_base": float(text.rope_parameters["rope_theta"]),
        "rope.dimension_count": text.hidden_size // text.num_attention_heads,
        **_keys(vision),
        "vision.attention.head_count": vision.attention_heads,
        "vision.attention.layer_norm_epsilon": vision.norm_eps,
        "vision.global.block_count": vision.num_global_layers,
        "vision.intermediate_layers_indices": list(vision.intermediate_layers_indices),
        "vision.max_num_tiles": vision.max_num_tiles,
    }
    return _written(writer, "mllama", keys, _renamed(kind, MLLAMA, _mllama_value(text)))


def _keys(vision: Any) -> dict[str, Any]:
    return {
        "vision.block_count": vision.num_hidden_layers,
        "vision.embedding_length": vision.hidden_size,
        "vision.feed_forward_length": vision.intermediate_size,
        "vision.image_size": vision.image_size,
        "vision.patch_size": vision.patch_size,
        "vision.num_channels": 3,
        "vision.attention.head_count": getattr(vision, "num_attention_heads", 0),
        "vision.attention.layer_norm_epsilon": getattr(vision, "layer_norm_eps", 1e-5),
    }


ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
}
MISTRAL3 = {
    "model.vision_tower.": "v.",
    "model.multi_modal_projector.": "mm.",
    "transformer.layers": "blk",
    "ln_pre": "encoder_norm",
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.o_proj": "attn_output",
    "attention_norm": "attn_norm",
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
}
GEMMA3 = {
    "model.vision_tower.embeddings.": "v.",
    "model.vision_tower.encoder.layers": "v.blk",
    "model.vision_tower.": "v.",
    "model.multi_modal_projector.": "mm.",
    "mm_input_projection_weight": "mm_input_projection.weight",
    **ATTENTION,
}
QWEN25VL = {
    "model.visual.": "v.",
    "blocks": "blk",
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
QWEN3VL = {
    "model.visual.": "v.",
    "patch_embed.proj": "patch_embed",
    "blocks": "blk",
    "attn.proj": "attn_out",
    "deepstack_merger_list": "deepstack_merger",
}
LLAMA4 = {
    "vision_model.model.layers": "v.blk",
    "vision_model.": "v.",
    "multi_modal_projector.": "mm.",
    "patch_embedding.linear": "patch_embedding",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    **ATTENTION,
}
MLLAMA = {
    "class_embedding": "class_embd",
    "patch_embedding": "patch_embd",
    "model.vision_model.": "v.",
    "model.language_model.layers": "blk",
    "model.language_model.embed_tokens": "token_embd",
    "model.language_model.norm": "output_norm",
    "lm_head": "output",
    "model.multi_modal_projector": "mm.0",
    "cross_attn.": "cross_attn_",
    "gated_positional_embedding.tile_embedding": "tile_position_embd",
    "gated_positional_embedding.embedding": "position_embd.weight",
    "gated_positional_embedding.gate": "position_embd.gate",
    "pre_tile_positional_embedding": "pre_tile_position_embd",
    "post_tile_positional_embedding": "post_tile_position_embd",
    "embedding.weight": "weight",
    "layernorm_pre": "pre_ln",
    "layernorm_post": "post_ln",
    "global_transformer.layers": "global.blk",
    "transformer.layers": "blk",
    "gate_attn": "attn_gate",
    "gate_ffn": "ffn_gate",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.o_proj": "attn_output",
    **ATTENTION,
}


def _gemma3_value(name: str, value: NDArray[Any]) -> NDArray[Any]:
    return value + 1 if "soft_emb_norm" in name else value


def _mllama_value(text: Any) -> Callable[[str, NDArray[Any]], NDArray[Any]]:
    heads = {"attn_q": text.num_attention_heads, "attn_k": text.num_key_value_heads}

    def value(name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name.endswith(".gate") or re.search(r"^v\..*(attn_gate|ffn_gate)$", name):
            array = np.tanh(array)
            return 1 - array if name == "v.position_embd.gate" else array
        rotated = re.match(r"blk\.\d+\.(attn_[qk])\.weight", name)
        if rotated is None:
            return array
        halves = array.reshape(heads[rotated[1]], 2, -1, array.shape[1])
        return halves.swapaxes(1, 2).reshape(
            array.shape
        )  # pairs that the rotary embedding turns are adjacent

    return value


def _renamed(
    kind: Kind, names: Mapping[str, str], value: Callable[[str, NDArray[Any]], NDArray[Any]] = lambda _, x: x
) -> Named:
    for name, weight in kind.model.state_dict().items():
        renamed = name
        for of, to in names.items():
            renamed = renamed.replace(of, to)
        whole = names is MLLAMA
        if whole or renamed.startswith(("v.", "mm.")):
            array = value(renamed, weight.numpy().astype(np.float32))
            yield renamed, array
            if renamed == "v.position_embd.gate":
                yield "v.tile_position_embd.gate", 1 - array


def _split(tensors: Named) -> Named:
    """Queries, keys and values apart, and each time slice of the patch embedding."""
    for name, array in tensors:
        if "attn.qkv" in name:
            for part, to in zip(np.split(array, 3), "qkv", strict=True):
                yield name.replace("attn.qkv", f"attn_{to}"), part
        elif "patch_embed.proj" in name:
            for n in range(array.shape[2]):
                yield (
                    name.replace("patch_embed.proj", f"patch_embd_{n}"),
                    np.ascontiguousarray(array[:, :, n]),
                )
        else:
            yield name, array


def _joined(
    text: Path,
    target: Path,
    architecture: str,
    keys: Mapping[str, Any],
    tensors: Named,
    dropped: Iterable[str] = (),
) -> Path:
    """A file with the keys and tensors of a text model, under the name of another architecture."""
    reader = gguf.GGUFReader(text)
    old = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")) and name not in dropped:
            kind = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            renamed = re.sub(rf"^{old}\.", f"{architecture}.", name)
            writer.add_key_value(renamed, field.contents(), field.types[0], sub_type=kind)
    have = ((each.name, np.array(each.data)) for each in reader.tensors)
    return _written(writer, architecture, keys, [*have, *tensors])


def _written(writer: Any, architecture: str, keys: Mapping[str, Any], tensors: Named) -> Path:
    for name, value in keys.items():
        full = f"{architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    for name, array in tensors:
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    path: Path = writer.path
    writer.close()
    return path


WRITERS = {
    "mistral3": write_mistral3,
    "gemma3": write_gemma3,
    "llama4": write_llama4,
    "qwen25vl": write_qwen25vl,
    "qwen3vl": write_qwen3vl,
    "qwen3vlmoe": write_qwen3vl,
    "qwen35": write_qwen3vl,
    "qwen35moe": write_qwen3vl,
}
"""The kinds of which one file may hold text model and encoder."""
