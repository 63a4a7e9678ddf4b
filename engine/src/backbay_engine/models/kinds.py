"""The kinds of models, and what in a file tells them apart."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Kind:
    """A kind of model, with an architecture to start from; a file is of it if some tensor has each of the parts, and
    none has an absent one.
    """

    name: str
    example: str
    tensors: tuple[str, ...]
    absent: tuple[str, ...] = ()


KINDS: Final = (
    Kind("a time-mixing recurrence", "rwkv7", ("time_mix_",)),
    Kind("a gated delta rule", "qwen3next", ("ssm_(ba|beta|alpha)",)),
    Kind("Mamba layers between layers with attention", "granitehybrid", ("ssm_in", "attn_q")),
    Kind("Mamba layers", "mamba2", ("ssm_in",)),
    Kind("short convolutions", "lfm2", ("shortconv",)),
    Kind("an encoder and a decoder", "t5", ("enc.blk", "dec.blk")),
    Kind("latent attention", "deepseek2", ("attn_kv_a_mqa",)),
    Kind("an encoder of texts", "bert", ("attn_output_norm", "layer_output_norm")),
    Kind("an encoder of texts with norms before each branch", "modern-bert", ("token_embd_norm", "ffn_norm")),
    Kind("experts with a shared expert", "glm4moe", ("ffn_gate_inp", "shexp")),
    Kind("experts with biases", "gpt-oss", ("ffn_gate_inp", "ffn_down_exps.bias")),
    Kind("experts", "qwen3moe", ("ffn_gate_inp",)),
    Kind("norms only after each branch", "olmo2", ("post_ffw_norm",), ("attn_norm",)),
    Kind("norms before and after each branch", "gemma2", ("post_ffw_norm",)),
    Kind("learned positions", "gpt2", ("position_embd",)),
    Kind(
        "parallel attention and feed-forward",
        "command-r",
        ("attn_norm",),
        ("ffn_norm", "post_attention_norm"),
    ),
    Kind("layer norms with biases", "starcoder2", ("attn_norm.bias",)),
    Kind("joint weights of gate and up", "phi3", ("ffn_up",), ("ffn_gate",)),
    Kind("norms of queries and keys", "qwen3", ("attn_q_norm",)),
    Kind("a plain decoder", "llama", ("attn_norm", "ffn_norm")),
)


def kind_of(tensors: Collection[str]) -> Kind | None:
    """The first kind that a file's tensors fit."""
    names = "\n".join(tensors)

    def has(part: str) -> bool:
        return re.search(rf"(^|[._]){part}", names, re.MULTILINE) is not None

    fitting = (k for k in KINDS if all(map(has, k.tensors)) and not any(map(has, k.absent)))
    return next(fitting, None)
