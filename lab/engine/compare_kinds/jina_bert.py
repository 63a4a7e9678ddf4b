"""Jina BERT v2 in NumPy: a transcription of Jina's published modeling_bert.py, in its order, with its names of weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
erf = np.vectorize(math.erf, otypes=[np.float64])


class JinaBert:
    """Embeddings, then blocks of JinaBertAttention and JinaBertGLUMLP; all in f64."""

    def __init__(self, config: Any, weights: Mapping[str, NDArray[Any]]) -> None:
        self.config = config
        self.weights = {name: weight.astype(np.float64) for name, weight in weights.items()}

    def __call__(self, tokens: Sequence[int]) -> Numbers:
        """The vectors of the tokens, (tokens, width)."""
        words = self.weights["embeddings.word_embeddings.weight"][list(tokens)]
        kinds = self.weights["embeddings.token_type_embeddings.weight"][np.zeros(len(tokens), int)]
        states = self.layer_norm("embeddings.LayerNorm", words + kinds)
        bias = self.alibi(len(tokens))
        for n in range(self.config.num_hidden_layers):
            states = self.attention(f"encoder.layer.{n}.attention", states, bias)
            states = self.glu_mlp(f"encoder.layer.{n}.mlp", states)
        return states

    def attention(self, name: str, states: Numbers, bias: Numbers) -> Numbers:
        """JinaBertSelfAttention and JinaBertSelfOutput: the scores are divided by sqrt(head), then the bias is added."""
        heads = self.config.num_attention_heads
        size = self.config.hidden_size // heads
        query, key, value = (
            self.linear(f"{name}.self.{part}", states).reshape(len(states), heads, size)
            for part in ("query", "key", "value")
        )
        context = np.empty_like(query)
        for head in range(heads):
            scores = query[:, head] @ key[:, head].T / math.sqrt(size) + bias[head]
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            context[:, head] = odds / odds.sum(axis=1, keepdims=True) @ value[:, head]
        dense = self.linear(f"{name}.output.dense", context.reshape(len(states), -1))
        return self.layer_norm(f"{name}.output.LayerNorm", dense + states)

    def glu_mlp(self, name: str, states: Numbers) -> Numbers:
        """The first half of gated_layers goes through GELU; the residual is the input, and the norm comes last."""
        both, size = self.linear(f"{name}.gated_layers", states), self.config.intermediate_size
        gated, plain = both[:, :size], both[:, size:]
        act = gated * (1 + erf(gated / math.sqrt(2))) / 2
        return self.layer_norm(f"{name}.layernorm", self.linear(f"{name}.wo", act * plain) + states)

    def alibi(self, size: int) -> Numbers:
        """rebuild_alibi_tensor: -slope * |difference of positions|, for each head."""
        relative = np.abs(np.arange(size)[None, :] - np.arange(size)[:, None])
        return np.array([-slope * relative for slope in head_slopes(self.config.num_attention_heads)])

    def linear(self, name: str, x: Numbers) -> Numbers:
        y = x @ self.weights[f"{name}.weight"].T
        return y + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else y

    def layer_norm(self, name: str, x: Numbers) -> Numbers:
        centred = x - x.mean(axis=1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + self.config.layer_norm_eps)
        return centred / deviation * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def head_slopes(heads: int) -> list[float]:
    """_get_alibi_head_slopes: a geometric row for powers of 2, else also every second one of twice as many heads."""
    if math.log2(heads).is_integer():
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start ** (n + 1) for n in range(heads)]
    closest = 2 ** math.floor(math.log2(heads))
    return head_slopes(closest) + head_slopes(2 * closest)[0::2][: heads - closest]
