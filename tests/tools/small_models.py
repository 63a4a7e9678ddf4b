"""Small random models of transformers: one for each architecture and each kind of context extension."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gguf
import torch
import transformers

WINDOW = 16
CONTEXT = 256
LLAMA = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
}
WIDER = {**LLAMA, "head_dim": 16}
BERT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def rope(**stretched: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, **stretched}}


LLAMA3 = rope(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=32)
PATTERN = ["sliding_attention", "sliding_attention", "full_attention"]
GEMMA_ROPES = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}


@dataclass(frozen=True)
class Small:
    """A class of transformers, its configuration, and further metadata of the file."""

    kind: str
    config: dict[str, Any]
    metadata: dict[str, Any]
    seed: int = 0  # of the random weights

    @property
    def embeds(self) -> bool:
        """Whether it is an embedding model."""
        return "pooling_type" in self.metadata


def of(kind: str, *configs: dict[str, Any], metadata: dict[str, Any] | None = None, **config: Any) -> Small:
    merged = {name: value for each in (*configs, config) for name, value in each.items()}
    return Small(kind, merged, metadata or {})


MODELS = {
    "llama": of("LlamaForCausalLM", LLAMA),
    "llama-tied": of("LlamaForCausalLM", LLAMA, tie_word_embeddings=True),
    "llama-llama3": of("LlamaForCausalLM", LLAMA, LLAMA3),
    "llama-linear": of("LlamaForCausalLM", LLAMA, rope(rope_type="linear", factor=4.0)),
    "llama-yarn": of("LlamaForCausalLM", LLAMA, YARN),
    "mixtral": of("MixtralForCausalLM", LLAMA, EXPERTS, intermediate_size=32),
    "qwen2": of("Qwen2ForCausalLM", LLAMA),
    "qwen2-yarn": of("Qwen2ForCausalLM", LLAMA, YARN),
    "qwen3": of("Qwen3ForCausalLM", WIDER),
    "qwen3moe": of(
        "Qwen3MoeForCausalLM",
        WIDER,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        norm_topk_prob=True,
    ),
    "gemma3": of(
        "Gemma3ForCausalLM",
        WIDER,
        GEMMA_ROPES,
        num_hidden_layers=3,
        sliding_window=WINDOW,
        layer_types=PATTERN,
        query_pre_attn_scalar=16,
    ),
    "gemma3-softcap": of(
        "Gemma3ForCausalLM",
        WIDER,
        num_hidden_layers=7,
        sliding_window=WINDOW,
        query_pre_attn_scalar=16,
        final_logit_softcapping=2.0,
    ),
    "gpt-oss": of(
        "GptOssForCausalLM", WIDER, EXPERTS, sliding_window=WINDOW, head_dim=32, intermediate_size=32
    ),
    "bert-mean": of("BertModel", BERT, metadata={"pooling_type": 1}),
    "bert-cls": of("BertModel", BERT, metadata={"pooling_type": 2}),
}


AT_256 = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}
WIDE = {
    name: Small(MODELS[name].kind, {**MODELS[name].config, **AT_256, **more}, MODELS[name].metadata)
    for name, more in {
        "llama-llama3": {},
        "mixtral": {},
        "qwen2": {},
        "qwen3": {"head_dim": 64},
        "qwen3moe": {"head_dim": 64, "moe_intermediate_size": 256},
        "gemma3": {"head_dim": 64, "layer_types": PATTERN + PATTERN[:1]},
        "gpt-oss": {"head_dim": 64, "intermediate_size": 256},
        "bert-mean": {"num_key_value_heads": 4},
    }.items()
}
"""The model with rows long enough for every quantized type."""


def make(small: Small, *, rounded: bool = False) -> torch.nn.Module:
    """The model, with weights that keep activations near 1 and attention relevant, `rounded` to f16 if set."""
    kind: Callable[..., torch.nn.Module] = getattr(transformers, small.kind)
    config = kind.config_class(**small.config)  # type: ignore[attr-defined]
    config._attn_implementation = config._experts_implementation = "eager"
    model = kind(config).eval()
    generator = torch.Generator().manual_seed(small.seed)
    with torch.no_grad():
        for part, weight in model.named_parameters():
            fill(small.kind, part, weight, generator)
        separate_experts(model, generator)
        for part, weight in model.named_parameters():
            if "experts" in part and small.kind.startswith("Gpt") and weight.dim() == 3:
                weight.copy_(as_mxfp4(weight))
            if rounded:
                weight.copy_(weight.half())
    return model


def fill(kind: str, part: str, weight: torch.Tensor, generator: torch.Generator) -> None:
    numbers = torch.randn(weight.shape, generator=generator)
    if part.endswith(("norm.weight", "LayerNorm.weight")):
        weight.copy_(numbers * 0.1 + (0 if kind.startswith("Gemma") else 1))
    elif weight.dim() == 1 or part.endswith("_bias"):
        weight.copy_(numbers * (1 if part.endswith("sinks") else 0.1))
    elif "embed" in part:
        weight.copy_(numbers)
    else:
        inputs = weight.shape[-2 if "experts" in part and kind.startswith("Gpt") else -1]
        weight.copy_(numbers * (1.5 / inputs**0.5))


def separate_experts(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Let routers use only the first features, which rank the experts of each token and pass all layers unchanged.

    So no token is near a tie between experts, which rounding would decide.
    """
    parts = dict(model.named_parameters())
    routers = [
        weight for part, weight in parts.items() if part.endswith(("mlp.gate.weight", "router.weight"))
    ]
    if not routers:
        return
    count = len(routers[0])
    for router in routers:
        router.mul_(0.1)
        router[:, :count] = 2 * torch.eye(count)
    tokens = parts["model.embed_tokens.weight"]
    ranks = torch.rand((len(tokens), count), generator=generator).argsort(dim=1)
    tokens[:, :count] = ranks - (count - 1) / 2
    for part, weight in parts.items():
        if part.endswith(("o_proj.weight", "o_proj.bias", "mlp.down_proj.weight")):
            weight[:count] = 0
        elif part.endswith("experts.down_proj_bias") or (
            part.endswith("down_proj") and "gate_up" not in part
        ):
            outputs_last = part.endswith("_bias") or model.config.model_type == "gpt_oss"
            weight[(..., slice(count)) if outputs_last else (slice(None), slice(count))] = 0


def as_mxfp4(weight: torch.Tensor) -> torch.Tensor:
    """Weights rounded to MXFP4; the input dimension is the last but one."""
    kind, rows = gguf.GGMLQuantizationType.MXFP4, weight.transpose(-1, -2).contiguous().numpy()
    held = gguf.quants.dequantize(gguf.quants.quantize(rows, kind), kind)
    return torch.from_numpy(held).reshape(rows.shape).transpose(-1, -2)
