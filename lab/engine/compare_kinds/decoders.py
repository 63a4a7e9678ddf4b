"""Decoders with attention in every block."""

from __future__ import annotations

import json
from typing import Any

from kind import VOCABULARY, Kind, kind

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 16

EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **more}}


YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
YARN_BEHIND = {
    "rope_parameters": {
        "full_attention": YARN["rope_parameters"],
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    }
}  # in blocks without a window


def longrope(original: int) -> dict[str, Any]:
    short, long = [1.0, 1.1, 1.2, 1.3], [1.5, 2.0, 3.0, 4.0]
    stretched = rope(rope_type="longrope", short_factor=short, long_factor=long, factor=512 / original)
    return {**stretched, "original_max_position_embeddings": original}


LLAMA3 = rope(
    rope_type="llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)
GEMMA_FILES = {"tokenizer.json": json.dumps({"model": {"vocab": [0] * VOCABULARY}, "added_tokens": []})}
"""The converter counts the tokens of a file."""
GEMMA4: dict[str, Any] = {
    **SMALL,
    "files": GEMMA_FILES,
    "num_hidden_layers": 4,
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCABULARY,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
KINDS: dict[str, Kind] = {
    "llama": kind("LlamaForCausalLM", SMALL),
    "llama3": kind("LlamaForCausalLM", SMALL, LLAMA3, head_dim=16, tie_word_embeddings=True),
    "mistral": kind("MistralForCausalLM", SMALL, sliding_window=None),
    "qwen2": kind("Qwen2ForCausalLM", SMALL),
    "qwen3": kind("Qwen3ForCausalLM", SMALL, head_dim=16),
    "gemma3": kind(
        "Gemma3ForCausalLM",
        SMALL,
        num_hidden_layers=6,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        files=GEMMA_FILES,
    ),
    "gemma2": kind(
        "Gemma2ForCausalLM",
        SMALL,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        attn_logit_softcapping=4.0,
        final_logit_softcapping=5.0,
    ),
    "olmo2": kind("Olmo2ForCausalLM", SMALL),
    "olmo3": kind("Olmo3ForCausalLM", SMALL, num_hidden_layers=4, sliding_window=WINDOW),
    "olmo3-yarn": kind("Olmo3ForCausalLM", SMALL, YARN_BEHIND, num_hidden_layers=4, sliding_window=WINDOW),
    "command-r": kind("CohereForCausalLM", SMALL, logit_scale=0.25, layer_norm_eps=1e-5),
    "cohere2": kind(
        "Cohere2ForCausalLM",
        SMALL,
        num_hidden_layers=4,
        logit_scale=0.25,
        sliding_window=WINDOW,
        describe=lambda config: config.update(rotary_pct=1.0),
    ),
    "granite": kind(
        "GraniteForCausalLM",
        SMALL,
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.7,
        logits_scaling=4.0,
    ),
    "granitemoe": kind(
        "GraniteMoeForCausalLM",
        SMALL,
        num_local_experts=6,
        num_experts_per_tok=2,
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.7,
        logits_scaling=4.0,
    ),
    "phi3": kind("Phi3ForCausalLM", SMALL),
    "phi3-long": kind("Phi3ForCausalLM", SMALL, longrope(8)),  # shorter than any sequence of the scripts
    "phi3-short": kind("Phi3ForCausalLM", SMALL, longrope(256)),
    "glm4": kind("Glm4ForCausalLM", SMALL, head_dim=8, attention_bias=True),
    "smollm3": kind("SmolLM3ForCausalLM", SMALL, num_hidden_layers=4),
    "gpt2": kind(
        "GPT2LMHeadModel",
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        bos_token_id=1,
        eos_token_id=2,
        describe=lambda config: config.update(n_ctx=512),
    ),
    "starcoder": kind(
        "GPTBigCodeForCausalLM",
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=512,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "starcoder2": kind("Starcoder2ForCausalLM", SMALL, use_bias=True, norm_epsilon=1e-5),
    "gemma4": kind(
        "Gemma4ForCausalLM",
        GEMMA4,
        num_hidden_layers=6,
        num_kv_shared_layers=3,
        hidden_size_per_layer_input=8,
        use_double_wide_mlp=True,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    ),
    "gemma4-dense": kind(
        "Gemma4ForCausalLM",
        GEMMA4,
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        final_logit_softcapping=5.0,
    ),
    "gemma4-moe": kind(
        "Gemma4ForCausalLM",
        GEMMA4,
        enable_moe_block=True,
        num_experts=6,
        top_k_experts=2,
        moe_intermediate_size=16,
    ),
    "gemma3n": kind(
        "Gemma3nForCausalLM",
        SMALL,
        files=GEMMA_FILES,
        num_hidden_layers=5,
        head_dim=8,
        sliding_window=WINDOW,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
        laurel_rank=6,
        num_kv_shared_layers=2,
        layer_types=[
            "sliding_attention",
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "full_attention",
        ],
        activation_sparsity_pattern=[0.9, 0.9, 0.0, 0.0, 0.0],
        final_logit_softcapping=5.0,
    ),
}
