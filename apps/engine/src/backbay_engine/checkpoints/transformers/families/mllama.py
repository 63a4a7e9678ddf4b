"""Llama 3.2 Vision: text and encoder in one file, as Ollama has it, since llama.cpp knows no such model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...arrays import LazyArray
from ..changes import interleaved_key, interleaved_query
from ..config_json import Keys, Settings
from ..family_mapping import Families, Family
from .decoders import llama3_factors, rotary_length
from .vision import EYE, processor_of

EYES = {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "attention_heads": 16,
    "image_size": 448,
    "patch_size": 14,
    "norm_eps": 1e-5,
    "max_num_tiles": 4,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
}
"""The values that transformers takes where a configuration states none."""
TEXT = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
}


def with_defaults(settings: Settings) -> Settings:
    return settings.over(TEXT)


def mllama_keys(settings: Settings) -> Keys:
    eye, processor = settings.section(EYE, EYES), processor_of(settings)
    return rotary_length()(settings) | {
        "attention.cross_attention_layers": settings.wholes("cross_attention_layers"),
        "vision.block_count": eye.whole("num_hidden_layers"),
        "vision.global.block_count": eye.whole("num_global_layers"),
        "vision.embedding_length": eye.whole("hidden_size"),
        "vision.feed_forward_length": eye.whole("intermediate_size"),
        "vision.attention.head_count": eye.whole("attention_heads"),
        "vision.attention.layer_norm_epsilon": eye.number("norm_eps"),
        "vision.image_size": eye.whole("image_size"),
        "vision.patch_size": eye.whole("patch_size"),
        "vision.num_channels": eye.whole("num_channels", default=3),
        "vision.max_num_tiles": eye.whole("max_num_tiles"),
        "vision.intermediate_layers_indices": eye.wholes("intermediate_layers_indices"),
        "vision.image_mean": processor.numbers("image_mean") or None,
        "vision.image_std": processor.numbers("image_std") or None,
    }


def gate(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.map(np.tanh)


def shared_gate(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    """The gate of the tiles' positions; what it leaves is the gate of the positions of a tile."""
    return {
        r"\1tile_embedding.gate": array.map(np.tanh),
        r"\1embedding.gate": array.map(lambda numbers: np.float32(1) - np.tanh(numbers)),
    }


MLLAMA = Family(
    "mllama",
    keys=mllama_keys,
    changes={
        r"^model\.layers\.\d+\.self_attn\.q_proj\.": interleaved_query,
        r"^model\.layers\.\d+\.self_attn\.k_proj\.": interleaved_key,
        r"(gated_positional_embedding\.)gate$": shared_gate,
        r"vision_model\..*gate(_attn|_ffn)?$": gate,
    },
    names={
        r"^model\.(?=vision_model|multi_modal_projector)": "",
        r"^multi_modal_projector\.": "mm.0.",
        r"^vision_model\.transformer\.layers\.": "v.blk.",
        r"^vision_model\.global_transformer\.layers\.": "v.global.blk.",
        r"^vision_model\.class_embedding$": "v.class_embd",
        r"^vision_model\.patch_embedding\.": "v.patch_embd.",
        r"^vision_model\.layernorm_pre\.": "v.pre_ln.",
        r"^vision_model\.layernorm_post\.": "v.post_ln.",
        r"^vision_model\.gated_positional_embedding\.embedding$": "v.position_embd.weight",
        r"^vision_model\.gated_positional_embedding\.embedding\.gate$": "v.position_embd.gate",
        r"^vision_model\.gated_positional_embedding\.tile_embedding\.": "v.tile_position_embd.",
        r"^vision_model\.(pre|post)_tile_positional_embedding\.(embedding\.)?": r"v.\1_tile_position_embd.",
        r"^(v\..*blk\.\d+)\.self_attn\.([qkv])_proj\.": r"\1.attn_\2.",
        r"^(v\..*blk\.\d+)\.self_attn\.o_proj\.": r"\1.attn_output.",
        r"^(v\..*blk\.\d+)\.mlp\.fc1\.": r"\1.ffn_up.",
        r"^(v\..*blk\.\d+)\.mlp\.fc2\.": r"\1.ffn_down.",
        r"^(v\..*blk\.\d+)\.input_layernorm\.": r"\1.attn_norm.",
        r"^(v\..*blk\.\d+)\.post_attention_layernorm\.": r"\1.ffn_norm.",
        r"^(v\..*blk\.\d+)\.gate_(attn|ffn)$": r"\1.\2_gate",
        r"^model\.layers\.(\d+)\.cross_attn\.": r"blk.\1.cross_attn_",
        r"^model\.layers\.(\d+)\.(cross_attn_(attn|mlp)_gate)$": r"blk.\1.\2",
    },
    further=llama3_factors,
    usual=with_defaults,
    tensors=".",
)
FAMILIES: Families = {"MllamaForConditionalGeneration": MLLAMA}
