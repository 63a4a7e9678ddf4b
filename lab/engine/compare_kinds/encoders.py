"""Encoders, and decoders that give vectors."""

from __future__ import annotations

from typing import Any

from bert_relatives import JinaBertModel, NomicBertModel
from decoders import GEMMA_FILES, SMALL, WINDOW
from kind import Kind, kind

BERT: dict[str, Any] = {
    **SMALL,
    "layer_norm_eps": 1e-12,
    "num_key_value_heads": 4,
    "type_vocab_size": 2,
}
MODERN: dict[str, Any] = {
    **BERT,
    "num_hidden_layers": 4,
    "local_attention": WINDOW,
    "describe": lambda config: config.update(global_attn_every_n_layers=3, local_attention=WINDOW),
}
RANKING: dict[str, Any] = {"num_labels": 1, "pooling": "rank", "logits": lambda model, ids: model(ids).logits}
XLMR: dict[str, Any] = {
    "vocab_size": 65,
    "pad_token_id": 64,
}  # transformers skips positions at the padding token
POOLING = {"mean": 1, "first": 2, "last": 3}
NOMIC: dict[str, Any] = {
    "describe": lambda config: config.update(NOMIC_NAMES, n_inner=config["intermediate_size"]),
    "files": {"tokenizer.json": '{"model": {"type": "WordPiece"}}'},
}
NOMIC_NAMES = {
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "layer_norm_epsilon": 1e-12,
}


def name_experts(config: dict[str, Any]) -> None:
    config |= {**NOMIC_NAMES, "n_positions": 2048, "activation_function": "gelu", "rotary_emb_base": 10000.0}
    config |= {"qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "moe_every_n_layers": 2}
    config |= {"moe_top_k": 2, "n_inner": config["intermediate_size"], "n_embd": config["hidden_size"]}


def pooled(architecture: str, pooling: str) -> dict[str, Any]:
    """The pooling, and its key in the file: the converter reads it from the files of sentence-transformers."""
    return {"pooling": pooling, "metadata": {f"{architecture}.pooling_type": POOLING[pooling]}}


KINDS: dict[str, Kind] = {
    "bert": kind("BertModel", BERT, **pooled("bert", "mean")),
    "bert-first": kind("BertModel", BERT, **pooled("bert", "first")),
    "modern-bert": kind("ModernBertModel", MODERN, **pooled("modern-bert", "mean")),
    "nomic-bert": kind("NomicBertModel", BERT, NOMIC, **pooled("nomic-bert", "mean")),
    "qwen3-embedding": kind("Qwen3Model", SMALL, head_dim=8, **pooled("qwen3", "last")),
    "gemma-embedding": kind(
        "Gemma3TextModel",
        SMALL,
        num_hidden_layers=4,
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        use_bidirectional_attention=True,
        describe=lambda config: config.update(sliding_window=WINDOW),  # transformers saves half of it
        files=GEMMA_FILES,
        **pooled("gemma-embedding", "mean"),
    ),
    "nomic-bert-moe": kind(
        NomicBertModel,
        num_experts=4,
        num_attention_heads=4,
        describe=name_experts,
        files=NOMIC["files"],
        **pooled("nomic-bert-moe", "mean"),
    ),
    "jina-bert-v3": kind(
        "JinaEmbeddingsV3Model",
        BERT,
        type_vocab_size=1,
        describe=lambda config: config.update(architectures=["XLMRobertaModel"], lora_adaptations=["text"]),
        **pooled("jina-bert-v3", "mean"),
    ),
    "jina-bert-v2": kind(JinaBertModel, hidden_size=48, **pooled("jina-bert-v2", "mean")),
    "xlmr-rerank": kind("XLMRobertaForSequenceClassification", BERT, RANKING, **XLMR),
    "modern-bert-rerank": kind(
        "ModernBertForSequenceClassification", MODERN, RANKING, classifier_pooling="mean"
    ),
}
