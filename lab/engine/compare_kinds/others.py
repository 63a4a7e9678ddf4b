"""Transcriptions by others, for kinds that transformers lacks.

rwkv7             the package `rwkv` of the model's author, from PyPI
nomic-bert-moe    Tenstorrent's in torch, in a checkout of github.com/tenstorrent/tt-metal, under models/experimental
jina-bert-v2      Jina's published code in NumPy, transcribed in jina_bert.py by another hand than the engine's; it needs
                  nothing else, and is always taken
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jina_bert import JinaBert
from kind import Kind
from numpy.typing import NDArray
from truth import Model

NAMES = {
    "model.embeddings.": "emb.",
    "model.pre_ln.": "blocks.0.ln0.",
    "model.ln_out.": "ln_out.",
    "model.layers.": "blocks.",
    ".attention.": ".att.",
    ".feed_forward.": ".ffn.",
}
"""Parts of names of the checkpoints that llama.cpp converts, and what the author calls them."""


def rwkv7(kind: Kind, folder: Path) -> Model:
    """The author's model, a token at a time."""
    os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "0", "RWKV_CUDA_ON": "0"}
    with warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(io.StringIO()):
        from rwkv.model import RWKV_x070

    weights = {_by_author(name): weight for name, weight in kind.torch.state_dict().items()}
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        torch.save(weights, f"{scratch}/model.pth")
        model = RWKV_x070(f"{scratch}/model", "cpu fp32")

    def run(tokens: Sequence[int]) -> NDArray[np.float32]:
        state, found = model.generate_zero_state(), []
        for token in tokens:
            logits, state = model.forward([token], state)
            found.append(logits.numpy())
        return np.stack(found)

    return run


def _by_author(name: str) -> str:
    for converted, authors in NAMES.items():
        name = name.replace(converted, authors)
    return name


def nomic_bert_moe(kind: Kind, folder: Path) -> Model:
    """Tenstorrent's model; each text has the mean of its vectors."""
    sys.path.insert(0, str(folder))
    from models.experimental.nomic_embed_text_v2_moe.reference.configuration_nomic_moe import NomicMoEConfig
    from models.experimental.nomic_embed_text_v2_moe.reference.modeling_nomic_moe import NomicBertModel

    config = kind.torch.config
    model = NomicBertModel(
        NomicMoEConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            type_vocab_size=config.type_vocab_size,
            num_experts=config.num_experts,
            layer_norm_epsilon=config.layer_norm_eps,
            moe_top_k=config.experts_per_token,
            moe_every_n_layers=2,
            rotary_emb_base=10000.0,
            pad_token_id=0,
            max_trained_positions=2048,
            pad_vocab_size_multiple=1,
        )
    ).eval()
    lost = model.load_state_dict(kind.torch.state_dict(), strict=False)
    if lost.unexpected_keys or not all(name.endswith("experts.bias") for name in lost.missing_keys):
        raise ValueError(f"other weights: {lost}")  # files have no bias of experts, and theirs is 0

    @torch.no_grad()
    def run(tokens: Sequence[int]) -> NDArray[np.float32]:
        ids = torch.tensor([list(tokens)])
        return model(ids, attention_mask=torch.ones_like(ids))[0].mean(0, keepdim=True).numpy()

    return run


def jina_bert_v2(kind: Kind) -> Model:
    """Each text has the mean of its vectors."""
    weights = {name: weight.numpy() for name, weight in kind.torch.state_dict().items()}
    model = JinaBert(kind.torch.config, weights)
    return lambda tokens: model(tokens).mean(0, keepdims=True).astype(np.float32)


OTHERS: dict[str, Callable[[Kind, Path], Model]] = {"rwkv7": rwkv7, "nomic-bert-moe": nomic_bert_moe}
HERE: dict[str, Callable[[Kind], Model]] = {"jina-bert-v2": jina_bert_v2}
