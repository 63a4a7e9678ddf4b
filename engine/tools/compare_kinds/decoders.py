"""Decoders with attention in every block."""

from __future__ import annotations

from typing import Any

from kind import Kind, kind

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

KINDS: dict[str, Kind] = {
    "llama": kind("LlamaForCausalLM", SMALL),
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
}
