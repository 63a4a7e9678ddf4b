"""Recurrent and hybrid models, and encoders with decoders."""

from __future__ import annotations

from typing import Any

from decoders import SMALL
from kind import Kind, kind

LIMIT = 1e-4
STATES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "limit": LIMIT}
MIXED: dict[str, Any] = {**SMALL, "num_hidden_layers": 3, "limit": LIMIT}

KINDS: dict[str, Kind] = {
    "mamba2": kind(
        "Mamba2ForCausalLM",
        **STATES,
        state_size=8,
        n_groups=2,
        head_dim=16,
        num_heads=4,
        expand=2,
        chunk_size=16,
        tie_word_embeddings=False,
    ),
    "lfm2": kind(
        "Lfm2ForCausalLM",
        **MIXED,
        layer_types=["conv", "full_attention", "conv"],
        block_auto_adjust_ff_dim=False,
    ),
    "lfm2moe": kind(
        "Lfm2MoeForCausalLM",
        **{**MIXED, "num_hidden_layers": 4},
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        moe_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_dense_layers=2,
    ),
}
