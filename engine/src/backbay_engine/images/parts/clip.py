"""CLIP: a class embedding before the patches, a norm before the blocks, and none after them."""

from __future__ import annotations

from functools import partial

import numpy as np

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import flag, wholes

from ...models.nn import Weights
from ..contract import Network
from ..inputs import Inputs, Pictures
from .attention import Groups, attend
from .block import Block, FeedForward, gelu, quick_gelu
from .norm import Norm
from .patches import PatchEmbedding, Pixels, patches_of
from .shape import EncoderShape, floats

FEATURES = wholes("vision.feature_layer", 0, 1 << 10)
GELU = flag("use_gelu")


class Clip(Network):
    """A network whose blocks are CLIP's, over squares of `patches` patches."""

    def __init__(self, weights: Weights, backend: Backend, patch: int, patches: int) -> None:
        self.shape = shape = EncoderShape.of(backend)
        self.patch, self.width, self.blocks, self.size = patch, shape.width, shape.blocks, patches + 1
        self._check_features(backend)
        v = weights.at("v.")
        self.embedding = PatchEmbedding(v, ("patch_embd",), patch, self.width)
        self.first = v.need("class_embd", self.width)
        self.positions = v.need("position_embd.weight", self.width, self.size)
        self.norm = Norm(v, ("pre_ln",), self.width, shape.eps)
        activation = gelu if GELU.of(backend.config, False) else quick_gelu
        blocks = (weights.at(f"v.blk.{n}.") for n in range(self.blocks))
        self.layers = [Block(block, shape, FeedForward(block, shape, activation)) for block in blocks]

    def _check_features(self, backend: Backend) -> None:
        """Files hold the blocks up to the one whose output becomes rows."""
        layers = FEATURES.of(backend.config, None)
        if layers is not None and list(layers) != [self.blocks]:
            assert backend.model is not None
            raise ModelFileError(
                backend.model.path,
                backend.config.offset(FEATURES.name),
                f"[{self.blocks}], the output of the last block, as {FEATURES.name}",
                list(map(int, layers)),
            )

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        """The class embedding stands before the patches: a patch of zeros, whose position includes it."""
        patches = inputs.leaf("patches", partial(patches_after_class, patch=self.patch))
        n, count = patches.dim(1), patches.dim(2)
        x = self.embedding(ctx, patches.reshape(ctx, -1, n * count)).reshape(ctx, self.width, n, count)
        table = floats(ctx, self.positions)
        first = table.slice(ctx, 1, 0, 1, 1).add(ctx, self.first.reshape(ctx, self.width, 1))
        positions = first.concat(ctx, table.slice(ctx, 1, 1, n, 1), 1)
        return self.norm(ctx, x.add(ctx, positions).reshape(ctx, self.width, n * count))

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        groups = [Groups(self.size, x.dim(1) // self.size)]
        return self.layers[layer](ctx, x, partial(attend, groups=groups, scale=self.shape.head**-0.5))

    def features(self, ctx: Context, x: Tensor) -> Tensor:
        """(width, patches of all squares), without the class."""
        squares = x.reshape(ctx, self.width, self.size, -1)
        return squares.slice(ctx, 1, 1, self.size, 1).contiguous(ctx, self.width, -1)


def patches_after_class(pictures: Pictures, patch: int) -> Pixels:
    """(squares, 1 + patches, features), the first of each square zeros."""
    return np.pad(patches_of(pictures, patch), ((0, 0), (1, 0), (0, 0)))
