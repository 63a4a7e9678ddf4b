"""Recurrent models, and hybrids of recurrence and attention."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ..arrays import LazyArray, concatenate, stack
from ..family import INTERLEAVED, Arrays, Change, Families, Family, negative_exponential, plus_one, squeezed
from ..settings import Keys, Settings
from .decoders import granite_keys
from .experts import QWEN_EXPERTS, QWEN_NAMES, SIGMOID, qwen_moe_keys

ENDLESS = 1 << 20  # a context for models whose states do not grow


def mamba_keys(settings: Settings) -> Keys:
    width = settings.width
    inner = (
        settings.maybe_whole("intermediate_size", "d_inner") or settings.whole("expand", default=2) * width
    )
    return {
        "context_length": ENDLESS,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.head_count_kv": None,
        "attention.layer_norm_epsilon": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_rms_epsilon": settings.number(
            "layer_norm_epsilon", "rms_norm_eps", default=1e-5
        ),
        "ssm.conv_kernel": settings.whole("conv_kernel", "d_conv", default=4),
        "ssm.inner_size": inner,
        "vocab_size": None,
    }


def mamba1_keys(settings: Settings) -> Keys:
    return mamba_keys(settings) | {
        "ssm.state_size": settings.whole("state_size", "d_state", default=16),
        "ssm.time_step_rank": settings.whole("time_step_rank", "dt_rank", default=-(settings.width // -16)),
        "ssm.dt_b_c_rms": settings.text("model_type") == "falcon_mamba",
    }


def mamba2_keys(settings: Settings) -> Keys:
    keys = mamba_keys(settings)
    return keys | {
        "ssm.state_size": settings.whole("state_size", "d_state", default=128),
        "ssm.time_step_rank": keys["ssm.inner_size"]
        // max(settings.whole("mamba_d_head", "head_dim", default=64), 1),
        "ssm.group_count": settings.whole("n_groups", default=1),
    }


def column(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.reshape(array.shape[0], 1)


def decay(array: LazyArray, settings: Settings) -> LazyArray:
    return column(negative_exponential(array, settings), settings)


def by_groups(array: LazyArray, settings: Settings) -> LazyArray:
    groups = settings.whole("n_groups", "mamba_n_groups", default=1)
    return array.regrouped(groups, array.shape[0] // max(groups, 1))


MAMBA1: Mapping[str, Change] = {r"A_log$": negative_exponential, r"conv1d\.weight$": squeezed}
MAMBA2: Mapping[str, Change] = {
    r"A_log$": decay,
    r"\.D$": column,
    r"(mixer|mamba)\.norm\.weight$": by_groups,
    r"conv1d\.weight$": squeezed,
}
TIME_STEPS = {r"\.dt_bias$": ".dt_proj.bias", r"^model\.(backbone|lm_head)\.": r"\1."}


def hybrid_keys(settings: Settings, attends: list[bool]) -> Keys:
    """The keys of Mamba layers between layers with attention."""
    heads = settings.whole("mamba_n_heads", "mamba_num_heads")
    return {
        "ssm.conv_kernel": settings.whole("mamba_d_conv", "conv_kernel", default=4),
        "ssm.state_size": settings.whole("mamba_d_state", "ssm_state_size"),
        "ssm.group_count": settings.whole("mamba_n_groups", "n_groups", default=1),
        "ssm.inner_size": heads * settings.whole("mamba_d_head", "mamba_head_dim"),
        "ssm.time_step_rank": heads,
        "attention.head_count_kv": [settings.kv_heads if attention else 0 for attention in attends],
        "rope.scaling.finetuned": False,
        "context_length": ENDLESS,
    }


def granite_hybrid_keys(settings: Settings) -> Keys:
    attends = [kind in ("attention", "full_attention") for kind in settings.texts("layer_types")]
    return {**granite_keys(settings), **hybrid_keys(settings, attends)}


GRANITE_BRANCHES = "expert.gate_proj", "expert.up_proj"


def granite_hybrid(settings: Settings) -> Family:
    """Granite 4; without Mamba layers it is one of the older kinds."""
    from .decoders import GRANITE_EXPERTS, GRANITE_NAMES

    experts = bool(settings.maybe_whole("num_local_experts"))
    changes, names = dict(GRANITE_EXPERTS), dict(GRANITE_NAMES)
    if not experts:
        changes[r"shared_mlp\.input_linear"] = _plain_halves
        names[r"shared_mlp\.output_linear"] = "mlp.down_proj"
    kinds = settings.texts("layer_types")
    if all(kind in ("attention", "full_attention") for kind in kinds):
        plain = "granitemoe" if experts else "granite"
        return Family(plain, keys=granite_keys, changes=changes, names=names)
    return Family(
        "granitehybrid",
        keys=granite_hybrid_keys,
        changes={**MAMBA2, **changes},
        names={**TIME_STEPS, **names},
    )


def _plain_halves(array: LazyArray, _settings: Settings) -> Mapping[str, LazyArray]:
    half = array.shape[0] // 2
    gate, up = array.split(half, half)
    return {"mlp.gate_proj": gate, "mlp.up_proj": up}


LETTERS = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def nemotron_layers(settings: Settings) -> list[str]:
    pattern = settings.text("hybrid_override_pattern")
    kinds = list(pattern) if pattern else settings.texts("layers_block_type")
    return [LETTERS.get(kind, kind) for kind in kinds]


def nemotron_keys(settings: Settings) -> Keys:
    kinds, mixture = nemotron_layers(settings), nemotron_has_experts(settings)
    inner = settings.whole("moe_intermediate_size") if mixture else settings.whole("intermediate_size")
    feeds = "moe" if mixture else "mlp"
    keys: Keys = hybrid_keys(settings, [kind == "attention" for kind in kinds])
    keys |= {
        "block_count": len(kinds),
        "feed_forward_length": [inner if kind == feeds else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": settings.number(
            "layer_norm_epsilon", "rms_norm_eps", default=1e-5
        ),
        "rope.dimension_count": settings.width // settings.heads,
        "attention.key_length": settings.whole("head_dim", "attention_head_dim"),
        "attention.value_length": settings.whole("head_dim", "attention_head_dim"),
    }
    if not mixture:
        return keys | dict.fromkeys(("expert_count", "expert_used_count"))
    return keys | {
        "expert_feed_forward_length": inner,
        "expert_shared_feed_forward_length": settings.whole("moe_shared_expert_intermediate_size"),
        "expert_shared_count": settings.whole("n_shared_experts", default=1),
        "expert_weights_norm": settings.flag("norm_topk_prob", True),
        "expert_weights_scale": settings.number("routed_scaling_factor", default=1.0),
        "moe_latent_size": settings.maybe_whole("moe_latent_size"),
    }


def nemotron_has_experts(settings: Settings) -> bool:
    return "moe" in nemotron_layers(settings)


def nemotron(settings: Settings) -> Family:
    architecture = "nemotron_h_moe" if nemotron_has_experts(settings) else "nemotron_h"
    names = {
        r"\.dt_bias$": ".dt.bias",
        r"e_score_correction_bias$": "e_score_correction.bias",
        r"^model\.layers": "backbone.layers",
        r"^backbone\.layers\.(\d+)\.mixer\.experts\.": r"model.layers.\1.mlp.experts.",
    }
    return Family(architecture, keys=nemotron_keys, changes={**MAMBA2, **INTERLEAVED}, names=names)


def lfm2_keys(settings: Settings) -> Keys:
    kinds = settings.texts("layer_types")
    inner = settings.whole("block_ff_dim", "intermediate_size")
    if settings.flag("block_auto_adjust_ff_dim"):
        inner = int(settings.number("block_ffn_dim_multiplier", default=1.0) * int(2 * inner / 3))
        multiple = max(settings.whole("block_multiple_of", default=256), 1)
        inner = multiple * -(-inner // multiple)
    return {
        "attention.head_count_kv": [0 if kind == "conv" else settings.kv_heads for kind in kinds],
        "shortconv.l_cache": settings.whole("conv_L_cache", default=3),
        "attention.layer_norm_rms_epsilon": settings.number("norm_eps", default=1e-5),
        "feed_forward_length": inner,
    }


def lfm2_moe_keys(settings: Settings) -> Keys:
    return lfm2_keys(settings) | {
        "feed_forward_length": settings.whole("intermediate_size"),
        "expert_feed_forward_length": settings.whole("moe_intermediate_size"),
        "leading_dense_block_count": settings.whole("num_dense_layers", default=0),
        "expert_gating_func": SIGMOID,
    }


def qwen_next_keys(settings: Settings) -> Keys:
    values = settings.whole("linear_num_value_heads")
    share = settings.rope.number("partial_rotary_factor", default=0.25)
    kinds = settings.texts("layer_types")
    return qwen_moe_keys(settings) | {
        "ssm.conv_kernel": settings.whole("linear_conv_kernel_dim", default=4),
        "ssm.state_size": settings.whole("linear_key_head_dim"),
        "ssm.group_count": settings.whole("linear_num_key_heads"),
        "ssm.time_step_rank": values,
        "ssm.inner_size": settings.whole("linear_value_head_dim") * values,
        "attention.recurrent_layers": [kind == "linear_attention" for kind in kinds] or None,
        "full_attention_interval": settings.whole("full_attention_interval", default=4),
        "rope.dimension_count": int(settings.head * share),
    }


def qwen35_keys(settings: Settings) -> Keys:
    sections = settings.rope.wholes("mrope_section") or [11, 11, 10]
    return qwen_next_keys(settings) | {"rope.dimension_sections": (sections + [0] * 4)[:4]}


def regrouped(array: LazyArray, settings: Settings) -> Mapping[str, LazyArray]:
    """Rows q, k, v, z of each key head in turn: first all of q, k and v, and all of z by themselves."""
    keys, key = settings.whole("linear_num_key_heads"), settings.whole("linear_key_head_dim")
    value = settings.whole("linear_num_value_heads") // keys * settings.whole("linear_value_head_dim")
    rows = np.arange(array.shape[0]).reshape(keys, 2 * key + 2 * value)
    q, k, v, z = (part.reshape(-1) for part in np.split(rows, np.cumsum([key, key, value]), axis=1))
    return {r"blk.\1.attn_qkv": array.take(np.concatenate([q, k, v])), r"blk.\1.attn_gate": array.take(z)}


def tiled(array: LazyArray, settings: Settings, head: int) -> LazyArray:
    """Rows of the value heads, those of one key head in turn with those of the others."""
    return array.take(_tiles(settings, head))


def _tiles(settings: Settings, head: int) -> NDArray[np.int64]:
    keys, values = settings.whole("linear_num_key_heads"), settings.whole("linear_num_value_heads")
    if values * head > 1 << 24:
        raise settings.refuse("linear_num_value_heads", "heads as the weights have")
    order: NDArray[np.int64] = np.arange(values * head).reshape(keys, values // keys, head)
    return order.swapaxes(0, 1).reshape(-1)


def _of_values(array: LazyArray, settings: Settings) -> LazyArray:
    return tiled(array, settings, settings.whole("linear_value_head_dim"))


def _of_heads(array: LazyArray, settings: Settings) -> LazyArray:
    return tiled(array, settings, 1)


def _behind_keys(array: LazyArray, settings: Settings) -> LazyArray:
    rest = 2 * settings.whole("linear_num_key_heads") * settings.whole("linear_key_head_dim")
    keys, values = array.split(rest, array.shape[0] - rest)
    return concatenate([keys, _of_values(values, settings)])


def _convolution(array: LazyArray, settings: Settings) -> LazyArray:
    return _behind_keys(squeezed(array, settings), settings)


def _columns(array: LazyArray, settings: Settings) -> LazyArray:
    return array.take_inner(_tiles(settings, settings.whole("linear_value_head_dim")))


QWEN_NEXT: Mapping[str, Change] = {
    r"A_log$": negative_exponential,
    r"conv1d\.weight$": squeezed,
    r"(?<!linear_attn\.)norm\.weight$": plus_one,
    **QWEN_EXPERTS,
}
QWEN35: Mapping[str, Change] = {
    **QWEN_NEXT,
    r"in_proj_qkv\.": _behind_keys,
    r"in_proj_z\.": _of_values,
    r"in_proj_[ab]\.": _of_heads,
    r"dt_bias$": _of_heads,
    r"A_log$": lambda array, settings: _of_heads(negative_exponential(array, settings), settings),
    r"linear_attn\.out_proj\.": _columns,
    r"conv1d\.weight$": _convolution,
}
NEXT_NAMES = {**QWEN_NAMES, **TIME_STEPS}
NEXT = Family(
    "qwen3next",
    keys=qwen_next_keys,
    changes={r"model\.layers\.(\d+)\.linear_attn\.in_proj_qkvz": regrouped, **QWEN_NEXT},
    names={**NEXT_NAMES},
)


def rwkv_keys(settings: Settings) -> Keys:
    width = settings.width

    def rank(names: tuple[str, ...], exponent: float, multiplier: float) -> int:
        return settings.whole(*names, default=max(1, round(width**exponent * multiplier / 32)) * 32)

    return {
        "context_length": ENDLESS,
        "attention.layer_norm_epsilon": settings.number("layer_norm_epsilon", "norm_eps"),
        "attention.layer_norm_rms_epsilon": None,
        "attention.head_count": 0,
        "attention.head_count_kv": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "feed_forward_length": settings.whole("intermediate_size", default=4 * width),
        "wkv.head_size": settings.whole("head_size", "head_dim"),
        "attention.decay_lora_rank": rank(("lora_rank_decay", "decay_low_rank_dim"), 0.5, 1.8),
        "attention.iclr_lora_rank": rank(("lora_rank_iclr", "a_low_rank_dim"), 0.5, 1.8),
        "attention.value_residual_mix_lora_rank": rank(
            ("lora_rank_value_residual_mix", "v_low_rank_dim"), 0.5, 1.3
        ),
        "attention.gate_lora_rank": rank(("lora_rank_gate", "gate_low_rank_dim"), 0.8, 0.6),
        "vocab_size": None,
    }


RWKV_NAMES = {
    r"\.blocks\.": ".layers.",
    r"\.ffn_norm\.": ".ln2.",
    r"\.ffn\.": ".feed_forward.",
    r"\.(self_attn|attn|time_mixer)\.": ".attention.",
    r"g_norm": "ln_x",
    r"_lora\.lora\.0\.weight$": "1",
    r"_lora\.lora\.2\.weight$": "2",
    r"_lora\.lora\.2\.bias$": "0",
    r"^lm_head\.": "head.",
}
MIXES = "rwkvag"  # the order of the six mixtures of a token and the one before it


def rwkv(arrays: Arrays, settings: Settings) -> Arrays:
    """RWKV-7's tensors under names of one kind; the six mixtures of a block stacked."""
    found, ours = Arrays(), Family("rwkv7", names=RWKV_NAMES)
    for name, array in arrays.items():
        own = ours.renamed(name)
        if re.search(r"attention\.[wavg][12]$", own) and "_lora" not in name:
            array = array.transposed()  # noqa: PLW2901
        if array.shape[:2] == (1, 1):
            array = array.regrouped(array.shape[2])  # noqa: PLW2901
        if own.endswith("r_k"):
            array = array.regrouped(prod(array.shape))  # noqa: PLW2901
        found[own] = array
    for block in range(settings.blocks):
        base = f"model.layers.{block}.attention."
        mixes = [found.pop(f"{base}x_{letter}", None) for letter in MIXES]
        present = [mix for mix in mixes if mix is not None]
        if len(present) == len(MIXES):
            stacked = stack(present)
            found[f"blk.{block}.time_mix_lerp_fused.weight"] = stacked.reshape(
                len(MIXES), 1, 1, stacked.shape[1]
            )
        elif f"{base}x_x" in found:
            joint = found.pop(f"{base}x_x")
            found[f"blk.{block}.time_mix_lerp_fused.weight"] = joint.regrouped(
                len(MIXES), 1, 1, prod(joint.shape) // 6
            )
    for part in "012":  # the first block has none of its own, and uses none
        if f"model.layers.0.attention.a{part}" in found:
            found[f"model.layers.0.attention.v{part}"] = found[f"model.layers.0.attention.a{part}"]
    return {
        name if name.endswith((".weight", ".bias")) else f"{name}.weight": array
        for name, array in found.items()
    }


MAMBA = Family("mamba", keys=mamba1_keys, changes=MAMBA1, names={r"^model\.(backbone|lm_head)\.": r"\1."})
LFM2 = Family(
    "lfm2", keys=lfm2_keys, changes={r"conv\.conv": squeezed}, names={r"expert_bias$": "expert_bias.bias"}
)
QWEN35_DENSE = Family("qwen35", keys=qwen35_keys, changes=QWEN35, names=NEXT_NAMES)
FAMILIES: Families = {
    **dict.fromkeys(("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"), MAMBA),
    "Mamba2ForCausalLM": Family("mamba2", keys=mamba2_keys, changes=MAMBA2, names=TIME_STEPS),
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "NemotronHForCausalLM": nemotron,
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": replace(LFM2, architecture="lfm2moe", keys=lfm2_moe_keys),
    "Qwen3NextForCausalLM": NEXT,
    **dict.fromkeys(("Rwkv7ForCausalLM", "RWKV7ForCausalLM"), Family("rwkv7", keys=rwkv_keys, prepare=rwkv)),
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"), QWEN35_DENSE),
    **dict.fromkeys(
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        replace(QWEN35_DENSE, architecture="qwen35moe"),
    ),
}
