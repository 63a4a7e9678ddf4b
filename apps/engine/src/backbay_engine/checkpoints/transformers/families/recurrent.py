"""Recurrent models, and hybrids of recurrence and attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...arrays import LazyArray
from ..changes import INTERLEAVED, halves, negative_exponential, squeezed
from ..config_json import Keys, Settings
from ..family_mapping import Change, Families, Family
from .decoders import GRANITE_EXPERTS, GRANITE_NAMES, granite_keys
from .experts import SIGMOID

EPSILON = "layer_norm_epsilon", "rms_norm_eps"
ENDLESS = 1 << 20  # a context for models whose states do not grow


def mamba_keys(settings: Settings) -> Keys:
    whole = settings.whole
    maybe, whole = settings.maybe_whole, settings.whole
    inner = maybe("intermediate_size", "d_inner") or whole("expand", default=2) * settings.width
    return {
        "context_length": ENDLESS,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.head_count_kv": None,
        "attention.layer_norm_epsilon": None,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_rms_epsilon": settings.number(*EPSILON, default=1e-5),
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
    keys, head = mamba_keys(settings), settings.whole("mamba_d_head", "head_dim", default=64)
    return keys | {
        "ssm.state_size": settings.whole("state_size", "d_state", default=128),
        "ssm.time_step_rank": keys["ssm.inner_size"] // max(head, 1),
        "ssm.group_count": settings.whole("n_groups", default=1),
    }


def as_column(array: LazyArray, _settings: Settings) -> LazyArray:
    return array.reshape(array.shape[0], 1)


def decay_column(array: LazyArray, settings: Settings) -> LazyArray:
    return as_column(negative_exponential(array, settings), settings)


def norm_groups(array: LazyArray, settings: Settings) -> LazyArray:
    groups = settings.whole("n_groups", "mamba_n_groups", default=1)
    return array.regrouped(groups, array.shape[0] // max(groups, 1))


MAMBA1: Mapping[str, Change] = {r"A_log$": negative_exponential, r"conv1d\.weight$": squeezed}
MAMBA2: Mapping[str, Change] = {
    r"A_log$": decay_column,
    r"\.D$": as_column,
    r"(mixer|mamba)\.norm\.weight$": norm_groups,
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


def granite_hybrid(settings: Settings) -> Family:
    """Granite 4; without Mamba layers it is one of the older kinds."""
    experts = bool(settings.maybe_whole("num_local_experts"))
    changes, names = dict(GRANITE_EXPERTS), dict(GRANITE_NAMES)
    if not experts:
        changes[r"shared_mlp\.input_linear"] = halves("mlp.gate_proj", "mlp.up_proj")
        names[r"shared_mlp\.output_linear"] = "mlp.down_proj"
    kinds = settings.texts("layer_types")
    if all(kind in ("attention", "full_attention") for kind in kinds):
        plain = "granitemoe" if experts else "granite"
        return Family(plain, keys=granite_keys, changes=changes, names=names)
    changes, names = {**MAMBA2, **changes}, {**TIME_STEPS, **names}
    return Family("granitehybrid", keys=granite_hybrid_keys, changes=changes, names=names)


LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
LETTERS |= {"linear_attention": "mamba", "full_attention": "attention"}


def nemotron_layers(settings: Settings) -> list[str]:
    pattern = settings.text("hybrid_override_pattern")
    kinds = list(pattern) if pattern else settings.texts("layers_block_type")
    return [LETTERS.get(kind, kind) for kind in kinds]


def nemotron_keys(settings: Settings) -> Keys:
    kinds, mixture = nemotron_layers(settings), nemotron_has_experts(settings)
    feeds, size = ("moe", "moe_intermediate_size") if mixture else ("mlp", "intermediate_size")
    inner = settings.whole(size)
    keys: Keys = hybrid_keys(settings, [kind == "attention" for kind in kinds])
    keys |= {
        "block_count": len(kinds),
        "feed_forward_length": [inner if kind == feeds else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": settings.number(*EPSILON, default=1e-5),
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


MAMBA = Family("mamba", keys=mamba1_keys, changes=MAMBA1, names={r"^model\.(backbone|lm_head)\.": r"\1."})
_BIAS = {r"expert_bias$": "expert_bias.bias"}
LFM2 = Family("lfm2", keys=lfm2_keys, changes={r"conv\.conv": squeezed}, names=_BIAS)
FAMILIES: Families = {
    **dict.fromkeys(("MambaForCausalLM", "MambaLMHeadModel", "FalconMambaForCausalLM"), MAMBA),
    "Mamba2ForCausalLM": Family("mamba2", keys=mamba2_keys, changes=MAMBA2, names=TIME_STEPS),
    "GraniteMoeHybridForCausalLM": granite_hybrid,
    "NemotronHForCausalLM": nemotron,
    "Lfm2ForCausalLM": LFM2,
    "Lfm2MoeForCausalLM": replace(LFM2, architecture="lfm2moe", keys=lfm2_moe_keys),
}
