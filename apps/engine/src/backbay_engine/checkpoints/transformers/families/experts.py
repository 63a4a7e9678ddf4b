"""Decoders with experts, and with latent attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from backbay import DType

from ...arrays import Array, LazyArray, Open
from ..changes import halves
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Family
from .decoders import llama3_factors, rotary_length, split_qkv

SIGMOID = 2  # llama.cpp's number for how routing scores experts


def qwen_moe_keys(settings: Settings) -> Keys:
    return {
        "expert_feed_forward_length": settings.maybe_whole("moe_intermediate_size"),
        "expert_shared_feed_forward_length": settings.maybe_whole("shared_expert_intermediate_size"),
    }


GATE_AND_UP = halves("experts.gate_proj.weight", "experts.up_proj.weight")
QWEN_EXPERTS = {r"experts\.gate_up_proj(\.weight)?$": GATE_AND_UP}
QWEN_NAMES = {r"experts\.down_proj$": "experts.down_proj.weight"}


def deepseek_keys(settings: Settings) -> Keys:
    latent, turning = settings.whole("kv_lora_rank", default=512), settings.whole("qk_rope_head_dim")
    routed = settings.maybe_whole("n_routed_experts")
    dense = settings.maybe_whole("first_k_dense_replace")
    scale = settings.rope.maybe_number("mscale_all_dim")
    return {
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": settings.number("rms_norm_eps", default=1e-6),
        "leading_dense_block_count": (0 if routed else settings.blocks) if dense is None else dense,
        "attention.q_lora_rank": settings.maybe_whole("q_lora_rank"),
        "attention.kv_lora_rank": latent,
        "attention.key_length": latent + turning,
        "attention.value_length": latent,
        "attention.key_length_mla": settings.whole("qk_nope_head_dim") + turning,
        "attention.value_length_mla": settings.whole("v_head_dim"),
        "expert_feed_forward_length": settings.whole("moe_intermediate_size", "intermediate_size"),
        "expert_count": routed,
        "expert_shared_count": settings.whole("n_shared_experts", default=0),
        "expert_weights_scale": settings.maybe_number("routed_scaling_factor"),
        "expert_weights_norm": True if settings.flag("norm_topk_prob") else None,
        "rope.dimension_count": turning,
        "rope.scaling.yarn_log_multiplier": None if scale is None else 0.1 * scale,
    }


def deepseek3_keys(settings: Settings) -> Keys:
    return {"expert_gating_func": SIGMOID, **deepseek_keys(settings)}


def split_latents(array: LazyArray, settings: Settings) -> Mapping[str, LazyArray]:
    """The up-projection of latents: that of keys, transposed for each head, and that of values."""
    heads, plain, value = settings.heads, settings.whole("qk_nope_head_dim"), settings.whole("v_head_dim")
    rows = array.regrouped(heads, plain + value, array.shape[1])
    return {"k_b_proj": rows.inner(0, plain).transposed(), "v_b_proj": rows.inner(plain, plain + value)}


LATENT = {r"kv_b_proj": split_latents}
LATENT_NAMES = {r"e_score_correction_bias$": "e_score_correction.bias"}


def glm_moe_keys(settings: Settings) -> Keys:
    return rotary_length(0.5)(settings) | {
        "expert_feed_forward_length": settings.maybe_whole("moe_intermediate_size"),
        "expert_shared_count": settings.maybe_whole("n_shared_experts"),
        "leading_dense_block_count": settings.maybe_whole("first_k_dense_replace"),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": settings.maybe_number("routed_scaling_factor"),
        "expert_weights_norm": settings.flag("norm_topk_prob", True),
    }


def ernie_keys(settings: Settings) -> Keys:
    shared, kv = settings.maybe_whole("moe_num_shared_experts"), settings.kv_heads
    return {
        "expert_count": settings.whole("moe_num_experts"),
        "expert_used_count": settings.whole("moe_k"),
        "interleave_moe_layer_step": settings.whole("moe_layer_interval", default=1),
        "leading_dense_block_count": settings.whole("moe_layer_start_index", default=0),
        "expert_feed_forward_length": settings.maybe_whole("moe_intermediate_size"),
        "expert_shared_count": shared,
        "expert_shared_feed_forward_length": settings.whole("intermediate_size") // kv if shared else None,
    }


ERNIE = {r"qkv_proj": split_qkv, r"up_gate_proj": halves("gate_proj", "up_proj")}
ERNIE_NAMES = {
    r"moe_statics\.e_score_correction_bias$": "moe_statics.e_score_correction.bias",
    r"^ernie\.": "model.",
}


def gptoss_keys(settings: Settings) -> Keys:
    return {
        "attention.sliding_window": settings.whole("sliding_window"),
        "expert_feed_forward_length": settings.whole("intermediate_size"),
    }


def llama4_keys(settings: Settings) -> Keys:
    return rotary_length()(settings) | {
        "feed_forward_length": settings.whole("intermediate_size_mlp"),
        "expert_feed_forward_length": settings.whole("intermediate_size"),
        "expert_count": settings.whole("num_local_experts"),
        "interleave_moe_layer_step": settings.whole("interleave_moe_layer_step", default=1),
        "attention.chunk_size": settings.maybe_whole("attention_chunk_size"),
        "attention.floor_scale": settings.maybe_number("floor_scale"),
        "use_qk_norm": settings.flag("use_qk_norm", True),
    }


def split_gate_columns(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    """Columns of all experts' gates, then those of the other branch."""
    rows = array.transposed()
    count = rows.shape[1] // 2
    return {"gate_proj.weight": rows.inner(0, count), "up_proj.weight": rows.inner(count, 2 * count)}


def split_gate_rows(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    """Rows of the gate and of the other branch, in turns; the matrices of experts are transposed."""
    rows, suffix = (array.transposed(), "weight") if len(array.shape) == 3 else (array, "bias")
    count = rows.shape[1]
    return {f"gate_proj.{suffix}": rows.inner(0, count, 2), f"up_proj.{suffix}": rows.inner(1, count, 2)}


def transposed_down(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    return {"down_proj.weight": array.transposed()}


def join_mxfp4(arrays: Arrays, _settings: Settings) -> Arrays:
    """Blocks and scales joined to GGUF's MXFP4; gates and the other branch stand in turns."""
    found = dict(arrays)
    for name in [name for name in arrays if name.endswith("_blocks")]:
        base = name.removesuffix("_blocks")
        blocks, scales = found.pop(name), found.pop(f"{base}_scales", None)
        if scales is None or len(blocks.shape) != 4 or blocks.shape[:3] != scales.shape:
            raise ValueError(f"{name} has no scales that fit")
        joined = _packed(blocks, scales)
        if base.endswith("gate_up_proj"):
            stem, count = base.removesuffix("gate_up_proj"), joined.shape[1]
            found[f"{stem}gate_proj.weight"] = joined.inner(0, count, 2)
            found[f"{stem}up_proj.weight"] = joined.inner(1, count, 2)
        else:
            found[f"{base}.weight"] = joined
    return found


def _packed(blocks: LazyArray, scales: LazyArray) -> LazyArray:
    experts, rows, groups, width = blocks.shape

    def read(data: Open, begin: int, end: int) -> Array:
        codes, exponents = blocks.rows(data, begin, end), scales.rows(data, begin, end)
        # Neighbours share a byte in the checkpoint; in GGUF a byte holds a number and the one 16 places on.
        numbers = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:3], 2 * width)
        packed = numbers[..., :width] | numbers[..., width:] << 4
        return np.concatenate([exponents[..., None], packed], -1).reshape(end - begin, *shape[1:])

    shape = experts, rows, groups * (width + 1)
    return LazyArray(shape, DType.MXFP4, (*blocks.parts, *scales.parts), read)


GPTOSS = Family(
    "gpt-oss",
    keys=gptoss_keys,
    prepare=join_mxfp4,
    changes={r"gate_up_proj(_bias)?$": split_gate_rows, r"down_proj$": transposed_down},
    names={r"sinks$": "sinks.weight", r"down_proj_bias$": "down_proj.bias"},
)
QWEN3MOE = Family("qwen3moe", keys=qwen_moe_keys, changes=QWEN_EXPERTS, names=QWEN_NAMES)
DEEPSEEK = Family("deepseek2", keys=deepseek_keys, changes=LATENT, names=LATENT_NAMES)
DEEPSEEK3 = replace(DEEPSEEK, keys=deepseek3_keys)
LLAMA4 = Family(
    "llama4",
    keys=llama4_keys,
    changes={
        r"(?<=experts\.)gate_up_proj$": split_gate_columns,
        r"(?<=experts\.)down_proj$": transposed_down,
    },
    further=llama3_factors,
)
FAMILIES = {
    **dict.fromkeys(("Llama4ForCausalLM", "Llama4ForConditionalGeneration"), LLAMA4),
    "Qwen3MoeForCausalLM": QWEN3MOE,
    "GptOssForCausalLM": GPTOSS,
    "DeepseekV2ForCausalLM": DEEPSEEK,
    **dict.fromkeys(("DeepseekV3ForCausalLM", "KimiK2ForCausalLM", "Glm4MoeLiteForCausalLM"), DEEPSEEK3),
    "Glm4MoeForCausalLM": Family("glm4moe", keys=glm_moe_keys, names=LATENT_NAMES, predicts=True),
    "Ernie4_5ForCausalLM": Family("ernie4_5", changes=ERNIE, names=ERNIE_NAMES),
    "Ernie4_5_MoeForCausalLM": Family("ernie4_5-moe", keys=ernie_keys, changes=ERNIE, names=ERNIE_NAMES),
}
