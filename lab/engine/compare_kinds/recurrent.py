"""Recurrent and hybrid models, and encoders with decoders."""

from __future__ import annotations

from typing import Any

import model_scripts as scripts
import torch
from decoders import SMALL
from kind import Kind, kind
from rwkv7 import Rwkv7ForCausalLM

LIMIT = 1e-4
STATES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "limit": LIMIT}
MIXED: dict[str, Any] = {**SMALL, "num_hidden_layers": 3, "limit": LIMIT}
OLD_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


def name_as_before(config: dict[str, Any]) -> None:
    """The converter knows the layers' old names."""
    config["layer_types"] = [OLD_NAMES.get(name, name) for name in config["layer_types"]]


def spell_pattern(config: dict[str, Any]) -> None:
    """The converter knows feed-forwards from a pattern of letters, and experts from their number."""
    letters = {"linear_attention": "M", "mamba": "M", "attention": "*", "full_attention": "*", "moe": "E"}
    kinds = config.pop("layers_block_type")
    config["hybrid_override_pattern"] = "".join(letters.get(kind, "-") for kind in kinds)
    config.pop("layer_types", None)
    config |= {
        "model_type": "nemotron-h",
        "num_hidden_layers": len(kinds),
    }  # transformers adds defaults to its own
    if "E" not in config["hybrid_override_pattern"]:
        del config["num_experts_per_tok"], config["n_routed_experts"]


def unlimited_steps(model: Any) -> None:
    """The file does not tell the least step of time, below which transformers raises steps."""
    for part in model.modules():
        if hasattr(part, "time_step_limit"):
            part.time_step_limit = (0.0, float("inf"))


EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GRANITE: dict[str, Any] = {
    **MIXED,
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 24,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 8,
    "mamba_chunk_size": 16,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
    "describe": name_as_before,
}
NEMOTRON: dict[str, Any] = {
    **MIXED,
    "layer_norm_epsilon": 1e-5,
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 8,
    "chunk_size": 16,
    "describe": spell_pattern,
    "prepare": unlimited_steps,
}
QWEN: dict[str, Any] = {
    **MIXED,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "full_attention_interval": 4,
}
SECTIONS: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
}


def answer(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """The logits of the decoder's tokens, for the text that scripts give to encoders."""
    text = torch.tensor([list(scripts.TEXTS[0])])
    return model(input_ids=text, decoder_input_ids=tokens).logits[0]


def with_own_head(model: Any) -> None:
    """A head of its own, as the files of Flan-T5 have; transformers would tie it to the embedding."""
    tied = dict(model.all_tied_weights_keys)
    tied.pop("lm_head.weight", None)
    model._tied_weights_keys = model.all_tied_weights_keys = tied
    model.lm_head.weight = torch.nn.Parameter(model.shared.weight.flip(0).clone() * 0.5)


T5: dict[str, Any] = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "logits": answer,
}

KINDS: dict[str, Kind] = {
    "mamba": kind("MambaForCausalLM", STATES, state_size=8, expand=2, tie_word_embeddings=False),
    "falconmamba": kind(
        "FalconMambaForCausalLM", STATES, state_size=8, expand=2, layer_norm_epsilon=1e-5, mixer_rms_eps=1e-5
    ),
    "mamba2": kind(
        "Mamba2ForCausalLM",
        STATES,
        state_size=8,
        n_groups=2,
        head_dim=16,
        num_heads=4,
        expand=2,
        chunk_size=16,
        tie_word_embeddings=False,
    ),
    "granitehybrid": kind(
        "GraniteMoeHybridForCausalLM",
        GRANITE,
        intermediate_size=24,
        num_local_experts=4,
        num_experts_per_tok=2,
        mamba_n_groups=2,
    ),
    "granitehybrid-dense": kind(
        "GraniteMoeHybridForCausalLM",
        GRANITE,
        intermediate_size=24,
        num_local_experts=0,
        num_experts_per_tok=0,
        mamba_n_groups=1,
    ),
    "nemotronh": kind(
        "NemotronHForCausalLM",
        NEMOTRON,
        layers_block_type=["mamba", "mlp", "attention", "mamba"],
    ),
    "nemotronhmoe": kind(
        "NemotronHForCausalLM",
        NEMOTRON,
        layers_block_type=["mamba", "moe", "attention", "moe"],
        n_routed_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        moe_shared_expert_intermediate_size=24,
        routed_scaling_factor=1.5,
    ),
    "lfm2": kind(
        "Lfm2ForCausalLM",
        MIXED,
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
    ),
    "lfm2moe": kind(
        "Lfm2MoeForCausalLM",
        MIXED,
        EXPERTS,
        num_hidden_layers=4,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        num_dense_layers=2,
    ),
    "qwen3next": kind(
        "Qwen3NextForCausalLM",
        QWEN,
        EXPERTS,
        partial_rotary_factor=0.5,
        shared_expert_intermediate_size=24,
    ),
    "qwen35": kind("Qwen3_5ForCausalLM", QWEN, SECTIONS),
    "qwen35moe": kind("Qwen3_5MoeForCausalLM", QWEN, SECTIONS, EXPERTS, shared_expert_intermediate_size=24),
    "rwkv7": kind(Rwkv7ForCausalLM, limit=LIMIT),
    "t5": kind("T5ForConditionalGeneration", T5, feed_forward_proj="relu"),
    "t5-flan": kind(
        "T5ForConditionalGeneration",
        T5,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        prepare=with_own_head,
    ),
}
