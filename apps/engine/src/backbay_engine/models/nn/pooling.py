"""From the vectors of a text's tokens to one vector, or to the text's score."""

from __future__ import annotations

from enum import IntEnum
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, Tensor
from backbay.gguf import Config

from ...steps.step import Step
from ..batch import Batch
from ..keys import POOLING, SCORED_POOLING
from .feed_forward import ACTIVATIONS, ActivationName
from .linear import Linear
from .norm import LayerNorm
from .weights import Weights


class Pooling(IntEnum):
    """How the vectors of a text's tokens become one; NONE gives the vectors of the outputs."""

    NONE = 0
    MEAN = 1
    FIRST = 2
    LAST = 3
    RANK = 4  # a score; of the last token's vector


@final
class TextHead:
    """The last part of a model of whole texts: pooling, and what the file has after it.

    dense_2, dense_3     matrices for vectors
    cls, cls.norm        a layer and its norm before the scores
    cls.output           the scores of labels; a file that has it ranks texts
    """

    def __init__(
        self, weights: Weights, width: int, pooling: Pooling, activation: ActivationName = "tanh"
    ) -> None:
        config = weights.config
        self.pooling, self.ranks = Pooling(POOLING.of(config, pooling)), "cls.output.weight" in weights
        self.dense = list[Linear]()
        self.layer = self.norm = self.labels = None
        self.softmax = self.pooling is Pooling.RANK
        if self.ranks:
            self.pooling = Pooling.LAST if self.softmax else self.scored(config, pooling)
            if "cls.weight" in weights:
                self.layer = Linear(weights, "cls", width, width)
                self.activation = ACTIVATIONS[activation]
            if "cls.norm.weight" in weights:
                self.norm = LayerNorm(weights, "cls.norm", width)
            self.labels = Linear(weights, "cls.output", width, None)
            return
        for name in ("dense_2", "dense_3"):
            if f"{name}.weight" in weights:
                self.dense.append(Linear(weights, name, width, None))
                width = self.dense[-1].weight.dim(1)

    def __call__(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        """(width, outputs) of (width, tokens): the vector of each output's text, or (labels, outputs)."""
        x = self.pool(ctx, x, batch)
        for dense in self.dense:
            x = dense(ctx, x)
        if self.layer is not None:
            x = self.activation(ctx, self.layer(ctx, x))
        if self.norm is not None:
            x = self.norm(ctx, x)
        if self.labels is not None:
            x = self.labels(ctx, x)
        return x.softmax(ctx) if self.softmax else x

    @staticmethod
    def scored(config: Config, pooling: Pooling) -> Pooling:
        """The pooling before the scores; by default the architecture's, or the first token."""
        default = Pooling.FIRST if pooling is Pooling.NONE else pooling
        return Pooling(SCORED_POOLING.of(config, default))

    def pool(self, ctx: Context, x: Tensor, batch: Batch) -> Tensor:
        if self.pooling is Pooling.NONE:
            return batch.select(ctx, x)
        if self.pooling is Pooling.MEAN:
            by_token = x.permute(ctx, 1, 0).contiguous(ctx)  # (tokens, width)
            return by_token.mulmat(ctx, batch.input("shares", mean_weights))
        ends = first_tokens if self.pooling is Pooling.FIRST else last_tokens
        return x.rows(ctx, batch.input("ends", ends))


def mean_weights(step: Step) -> NDArray[np.float32]:
    """(outputs, tokens): the weight of each token in the mean over an output's text."""
    same = _same_text(step)
    return np.asarray(same / same.sum(1, keepdims=True), np.float32)


def first_tokens(step: Step) -> NDArray[np.int32]:
    """The first token of each output's text."""
    return np.asarray(np.argmax(_same_text(step), axis=1), np.int32)


def last_tokens(step: Step) -> NDArray[np.int32]:
    """The last token of each output's text."""
    return np.asarray(step.size - 1 - np.argmax(_same_text(step)[:, ::-1], axis=1), np.int32)


def _same_text(step: Step) -> NDArray[np.bool_]:
    """(outputs, tokens)"""
    return np.asarray(step.sequences[step.outputs, None] == step.sequences)
