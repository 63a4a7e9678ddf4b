"""Random small configurations, with all settings of transformers for each architecture."""

from __future__ import annotations

from random import Random
from typing import Any

from small_models import Small

KINDS = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Gemma3ForCausalLM",
    "GptOssForCausalLM",
    "BertModel",
)
WIDTHS = (32, 48, 64, 96)
CONTEXT = 256
ORIGINAL = 24  # before the context is extended; texts are longer
EPSILONS = (1e-6, 1e-5, 1e-3)


def draw(seed: int) -> Small:
    """The configuration of a seed; architectures take turns."""
    rng = Random(seed)
    kind = KINDS[seed % len(KINDS)]
    if kind == "BertModel":
        return _bert(rng)
    config = _decoder(rng)
    if kind in ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM"):
        config["attention_bias"] = rng.random() < 0.4
    if kind == "LlamaForCausalLM":
        config["mlp_bias"] = rng.random() < 0.4
    if kind in ("MistralForCausalLM", "MixtralForCausalLM"):
        config["sliding_window"] = rng.choice([None, 1, 7, 19])
    if kind.startswith("Qwen"):
        config |= _qwen_windows(rng, config["num_hidden_layers"])
    if kind in ("MixtralForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"):
        config |= _experts(rng, kind)
    if kind == "Gemma3ForCausalLM":
        return Small(kind, config | _gemma3(rng, config), {}, seed)
    if kind == "GptOssForCausalLM":
        return Small(kind, config | _gptoss(rng, config), {}, seed)
    dim = config["head_dim"]
    return Small(kind, config | {"rope_parameters": _rope(rng, dim)}, {}, seed)


def _decoder(rng: Random) -> dict[str, Any]:
    kv_heads = rng.choice([1, 2, 3])
    heads = kv_heads * rng.choice([1, 2, 4])
    width = (
        rng.choice(WIDTHS) // heads * heads
    )  # transformers requires a multiple of heads in some configurations
    return {
        "vocab_size": rng.randint(64, 131),
        "hidden_size": width,
        "intermediate_size": rng.choice([24, 50, 64, 96]),
        "num_hidden_layers": rng.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice([4, 6, 10, 16, 20, 32, 40]),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": rng.choice(EPSILONS),
        "tie_word_embeddings": rng.random() < 0.5,
    }


def _rope(rng: Random, dim: int, *kinds: str) -> dict[str, Any]:
    kind = rng.choice(kinds or ("default", "linear", "dynamic", "yarn", "llama3", "longrope"))
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": rng.choice([500.0, 1e4, 5e5, 1e6])}
    if kind == "longrope":
        factors = {f"{n}_factor": [rng.uniform(1, 9) for _ in range(dim // 2)] for n in ("short", "long")}
        # The sides have different rules for the choice of factors; with this length they choose the same factors.
        rope |= {**factors, "original_max_position_embeddings": CONTEXT}
        return rope | rng.choice([{"factor": 3.0}, {"attention_factor": 1.2}])
    if kind != "default":
        rope["factor"] = rng.choice([2.0, 3.5, 8.0])
    if kind in ("yarn", "llama3"):
        rope["original_max_position_embeddings"] = ORIGINAL
    if kind == "llama3":
        rope |= rng.choice(
            [
                {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
                {"low_freq_factor": 0.5, "high_freq_factor": 2.5},
            ]
        )
    if kind == "yarn":
        rope |= rng.choice(
            [
                {},
                {"attention_factor": 1.3},
                {"beta_fast": 4.0, "beta_slow": 0.5},
                {"mscale": 0.7, "mscale_all_dim": 1.0},
            ]
        )
    return rope


def _qwen_windows(rng: Random, layers: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {}
    return {
        "use_sliding_window": True,
        "sliding_window": rng.choice([1, 5, 16, 33]),
        "max_window_layers": rng.randint(0, layers),
    }


def _experts(rng: Random, kind: str) -> dict[str, Any]:
    count = rng.choice([2, 3, 4, 6])
    found: dict[str, Any] = {"num_experts_per_tok": rng.randint(1, count)}
    if kind != "Qwen3MoeForCausalLM":
        return {**found, "num_local_experts": count, "intermediate_size": rng.choice([32, 64])}
    return {
        **found,
        "num_experts": count,
        "moe_intermediate_size": rng.choice([20, 32, 48]),
        "norm_topk_prob": rng.random() < 0.5,
        "decoder_sparse_step": rng.choice([1, 1, 2]),
        "mlp_only_layers": rng.choice([[], [], [0]]),
    }


def _gemma3(rng: Random, config: dict[str, Any]) -> dict[str, Any]:
    layers = rng.randint(1, 7)
    pattern = rng.choice([1, 2, 3, 6, 7])
    return {
        "num_hidden_layers": layers,
        "layer_types": [
            "sliding_attention" if (n + 1) % pattern else "full_attention" for n in range(layers)
        ],
        "sliding_window": rng.choice([1, 3, 16, 17]),
        "query_pre_attn_scalar": rng.choice([config["head_dim"], 7, 64]),
        "final_logit_softcapping": rng.choice([None, 2.0, 30.0]),
        "rope_parameters": {
            "full_attention": _rope(rng, config["head_dim"], "default", "linear", "yarn", "llama3"),
            "sliding_attention": {"rope_type": "default", "rope_theta": rng.choice([300.0, 1e4])},
        },
    }


def _gptoss(rng: Random, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    rope = _rope(rng, config["head_dim"], "default", "linear", "yarn")
    width = 32 * rng.choice([1, 2])  # whole blocks of MXFP4
    return {
        "hidden_size": width,
        "head_dim": rng.choice([8, 16, 32]),
        "sliding_window": rng.choice([1, 5, 16, 128]),
        "layer_types": rng.choice(
            [None, [rng.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]]
        ),
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
        "tie_word_embeddings": False,
    }


def _bert(rng: Random) -> Small:
    heads = rng.choice([1, 2, 3, 4])
    config = {
        "vocab_size": rng.randint(65, 131),
        "hidden_size": heads * rng.choice([4, 8, 10, 16]),
        "intermediate_size": rng.choice([24, 50, 64]),
        "num_hidden_layers": rng.randint(1, 3),
        "num_attention_heads": heads,
        "max_position_embeddings": rng.choice([40, 64]),
        "type_vocab_size": rng.choice([1, 2, 3]),
        "layer_norm_eps": rng.choice([1e-12, 1e-5, 1e-3]),
    }
    pooling = {"pooling_type": rng.choice([1, 2])}
    if rng.random() < 0.5:
        return Small("BertModel", config, pooling, heads)
    # Positions begin after the id of the padding token, which no text contains.
    padding = config["vocab_size"] - 1
    known = padding + 1 + config["max_position_embeddings"]
    padded = {**config, "pad_token_id": padding, "max_position_embeddings": known}
    return Small("XLMRobertaModel", padded, pooling, heads)
