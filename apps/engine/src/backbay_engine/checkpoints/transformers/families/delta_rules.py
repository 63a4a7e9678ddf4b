"""Models whose states follow a delta rule: Qwen 3 Next, Qwen 3.5 and RWKV 7."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from ...arrays import LazyArray, concatenate, stack
from ..changes import negative_exponential, plus_one, squeezed
from ..config_json import Keys, Settings
from ..family_mapping import Arrays, Change, Families, Family
from .experts import QWEN_EXPERTS, QWEN_NAMES, qwen_moe_keys
from .recurrent import ENDLESS, TIME_STEPS


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


def regroup_qkvz(array: LazyArray, settings: Settings) -> Mapping[str, LazyArray]:
    """Rows q, k, v, z of each key head in turn: first all of q, k and v, and all of z by themselves."""
    keys, key = settings.whole("linear_num_key_heads"), settings.whole("linear_key_head_dim")
    value = settings.whole("linear_num_value_heads") // keys * settings.whole("linear_value_head_dim")
    rows = np.arange(array.shape[0]).reshape(keys, 2 * key + 2 * value)
    q, k, v, z = (part.reshape(-1) for part in np.split(rows, np.cumsum([key, key, value]), axis=1))
    return {r"blk.\1.attn_qkv": array.take(np.concatenate([q, k, v])), r"blk.\1.attn_gate": array.take(z)}


def _tiles(settings: Settings, head: int) -> NDArray[np.int64]:
    """The order of rows of the value heads, those of one key head in turn with those of the others."""
    keys, values = settings.whole("linear_num_key_heads"), settings.whole("linear_num_value_heads")
    if values * head > 1 << 24:
        raise settings.refuse("linear_num_value_heads", "heads as the weights have")
    order: NDArray[np.int64] = np.arange(values * head).reshape(keys, values // keys, head)
    return order.swapaxes(0, 1).reshape(-1)


def _of_values(array: LazyArray, settings: Settings) -> LazyArray:
    return array.take(_tiles(settings, settings.whole("linear_value_head_dim")))


def _of_heads(array: LazyArray, settings: Settings) -> LazyArray:
    return array.take(_tiles(settings, 1))


def _behind_keys(array: LazyArray, settings: Settings) -> LazyArray:
    rest = 2 * settings.whole("linear_num_key_heads") * settings.whole("linear_key_head_dim")
    keys, values = array.split(rest, array.shape[0] - rest)
    return concatenate([keys, _of_values(values, settings)])


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
    r"conv1d\.weight$": lambda array, settings: _behind_keys(squeezed(array, settings), settings),
}
NEXT_NAMES = {**QWEN_NAMES, **TIME_STEPS}
NEXT_CHANGES = {r"model\.layers\.(\d+)\.linear_attn\.in_proj_qkvz": regroup_qkvz, **QWEN_NEXT}
NEXT = Family("qwen3next", keys=qwen_next_keys, changes=NEXT_CHANGES, names=NEXT_NAMES, predicts=True)


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


def stack_rwkv(arrays: Arrays, settings: Settings) -> Arrays:
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
        target, count = f"blk.{block}.time_mix_lerp_fused.weight", len(MIXES)
        if len(present) == count:
            stacked = stack(present)
            found[target] = stacked.reshape(count, 1, 1, stacked.shape[1])
        elif f"{base}x_x" in found:
            joint = found.pop(f"{base}x_x")
            found[target] = joint.regrouped(count, 1, 1, prod(joint.shape) // count)
    for part in "012":  # the first block has none of its own, and uses none
        if f"model.layers.0.attention.a{part}" in found:
            found[f"model.layers.0.attention.v{part}"] = found[f"model.layers.0.attention.a{part}"]
    return {
        name if name.endswith((".weight", ".bias")) else f"{name}.weight": array
        for name, array in found.items()
    }


QWEN35_DENSE = Family("qwen35", keys=qwen35_keys, changes=QWEN35, names=NEXT_NAMES, predicts=True)
FAMILIES: Families = {
    "Qwen3NextForCausalLM": NEXT,
    **dict.fromkeys(
        ("Rwkv7ForCausalLM", "RWKV7ForCausalLM"), Family("rwkv7", keys=rwkv_keys, prepare=stack_rwkv)
    ),
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"), QWEN35_DENSE),
    **dict.fromkeys(
        ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"),
        replace(QWEN35_DENSE, architecture="qwen35moe"),
    ),
}
