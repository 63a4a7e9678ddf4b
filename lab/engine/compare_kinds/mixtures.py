"""Decoders with experts and routing of their own, and with latent attention."""

from __future__ import annotations

from typing import Any

import torch
from decoders import EXPERTS, SMALL, WINDOW, rope
from kind import Kind, kind


def biased(model: Any) -> None:
    """Biases of the routing that change which experts are chosen."""
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:
            buffer.copy_(torch.randn(buffer.shape) * 0.2)


LATENT: dict[str, Any] = {
    **SMALL,
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
}
ROUTING = (
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "first_k_dense_replace",
    "routed_scaling_factor",
)
GROUPS: dict[str, Any] = {"n_group": 4, "topk_group": 2}
YARN = rope(
    rope_type="yarn",
    factor=4.0,
    original_max_position_embeddings=64,
    mscale=0.8,
    mscale_all_dim=0.8,
    beta_fast=32,
    beta_slow=1,
)
YARN_OF_GPTOSS = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}

KINDS: dict[str, Kind] = {
    "mixtral": kind("MixtralForCausalLM", SMALL, num_local_experts=4, num_experts_per_tok=2),
    "qwen3moe": kind("Qwen3MoeForCausalLM", SMALL, EXPERTS, num_experts=6, head_dim=16, norm_topk_prob=True),
    "gptoss": kind(
        "GptOssForCausalLM",
        SMALL,
        num_hidden_layers=4,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=WINDOW,
        rope_parameters=YARN_OF_GPTOSS,
    ),
    "deepseek3": kind("DeepseekV3ForCausalLM", LATENT, prepare=biased),
    "deepseek3-groups": kind("DeepseekV3ForCausalLM", LATENT, GROUPS, prepare=biased),
    "deepseek3-yarn": kind("DeepseekV3ForCausalLM", LATENT, YARN, prepare=biased),
    "deepseek2-lite": kind("DeepseekV2ForCausalLM", LATENT, YARN, q_lora_rank=None, topk_method="greedy"),
    "deepseek2-groups": kind("DeepseekV2ForCausalLM", LATENT, GROUPS, topk_method="group_limited_greedy"),
    "glm4moe": kind(
        "Glm4MoeForCausalLM",
        SMALL,
        **{name: LATENT[name] for name in ROUTING},
        head_dim=8,
        num_hidden_layers=3,
        use_qk_norm=True,
        attention_bias=True,
        prepare=biased,
        describe=lambda config: config.update(num_nextn_predict_layers=0),
    ),
    "llama4": kind(
        "Llama4ForCausalLM",
        {**SMALL, "pad_token_id": 0, "num_hidden_layers": 5},
        head_dim=16,
        intermediate_size=16,
        intermediate_size_mlp=48,
        num_local_experts=4,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        attention_chunk_size=WINDOW,
        floor_scale=20,
        use_qk_norm=True,
        metadata={"llama4.attention.chunk_size": WINDOW, "llama4.attention.floor_scale": 20.0},
    ),
    "ernie": kind("Ernie4_5ForCausalLM", SMALL),
    "erniemoe": kind(
        "Ernie4_5_MoeForCausalLM",
        SMALL,
        num_hidden_layers=3,
        moe_num_experts=6,
        moe_k=2,
        moe_intermediate_size=16,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        moe_layer_interval=1,
        prepare=biased,
    ),
}
