"""Pixtral and Mistral Small 3: pictures of any size, rotary positions on two axes, rows of text for rows of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, Tensor
from backbay.gguf import number, whole

from ...encoders.block import Norm, TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import CLIP, PATCH, SIDE, EncoderShape, colour_scale, first_present, head_count_key
from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..parts.patch_grids import rope_axes, rotate, square_coordinates
from ..parts.patches import PatchEmbedding, Pixels, cut_patches, stack_pixels
from ..parts.towers import VisionTower
from ..preparations.stretched import PixtralPreparation
from ..prepared_picture import Prepared

MERGE, OWN_MERGE = (whole(name, 1, 64) for name in ("vision.spatial_merge_size", "spatial_merge_size"))
BASE = number("vision.rope.freq_base", most=1e30, above=1)
EPSILON = 1e-5  # of the reference's norms, where the file does not say
ROW, BREAK, END = "[IMG]", "[IMG_BREAK]", "[IMG_END]"
MERGERS = ("patch_merger", "patch_merger.merging_layer")


@final
class PixtralFamily(VisionFamily):
    """A projector file, or a single file, whose queries and keys are in another order."""

    placeholder = marker = ROW
    texts = ("llama", "mistral3")
    projections = "mm.2.weight", "mm.linear_2.weight"

    def prepares(self) -> PixtralPreparation:
        self.patch, self.single = PATCH.of(self.config), self.config.architecture != "clip"
        self.merge = OWN_MERGE.of(self.config, 2) if self.single else MERGE.of(self.config, 1)
        unit, edge = self.patch * self.merge, SIDE.of(self.config)
        return PixtralPreparation(unit=unit, edge=edge, **colour_scale(self.config, CLIP))

    def words(self) -> tuple[str, ...]:
        return BREAK, END

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        """Lines end with tokens of their own, whose embeddings are those of the text."""
        rows, columns = picture.grid
        line, end = ([placeholder_id(tokenizer, word)] for word in self.words())
        return rows_in_runs(placeholder_id(tokenizer, ROW), columns, [[], *[line] * (rows - 1), end])

    def cost(self, picture: Prepared) -> int:
        return picture.tokens * self.merge**2

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(VisionTower):
    """Patches go square by square, so that those which become one row lie together."""

    def __init__(self, family: PixtralFamily, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        super().__init__(EncoderShape.of(backend, eps=EPSILON))
        shape = self.shape
        if shape.head % 4:
            raise head_count_key("vision").refuse(
                family.config, f"heads of a multiple of 4 features of the width {self.width}"
            )
        self.base = BASE.of(family.config, 1e4)
        v, mm = weights.at("v."), weights.at("mm.")
        self.embedding = PatchEmbedding(v, ("patch_embd", "patch_conv"), family.patch, self.width)
        self.pre_norm = Norm(v, ("pre_ln", "encoder_norm"), self.width, shape.eps, root=True)
        self.declare(weights, None)
        merged = self.width * family.merge**2
        self.norm = self.merger = None
        if family.merge > 1 or any(f"{name}.weight" in mm for name in MERGERS):
            self.norm = Norm(mm, ("input_norm", "norm"), self.width, shape.eps, root=True)
            self.merger = Linear(mm, first_present(mm, *MERGERS), merged, self.width)
        names = first_present(mm, "1", "linear_1"), first_present(mm, "2", "linear_2")
        self.product = TwoLayerPerceptron(mm, names, (self.width, None, family.width))
        weights.check()

    def start(self, ctx: Context, inputs: EncoderInputs) -> Tensor:
        return self.pre_norm(ctx, self.embedding(ctx, inputs.leaf("patches", self._patches)))

    def turn(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        positions, factors = inputs.leaf("positions", self._positions), inputs.leaf("factors", self._factors)
        return rotate(ctx, self._halved(ctx, x), positions, self.base, factors)

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        if self.norm is not None and self.merger is not None:
            square = self.family.merge**2
            x = self.norm(ctx, x).reshape(ctx, self.width, square, -1).permute(ctx, 1, 0, 2).contiguous(ctx)
            x = self.merger(ctx, x.reshape(ctx, self.width * square, -1))
        return self.product(ctx, x)

    def _halved(self, ctx: Context, x: Tensor) -> Tensor:
        """Queries or keys whose pairs are a half of the head apart, where those of projector files are adjacent."""
        if self.family.single:
            return x
        pairs = x.contiguous(ctx).reshape(ctx, 2, x.dim(0) // 2, x.dim(1), x.dim(2))
        return pairs.permute(ctx, 1, 0, 2, 3).contiguous(ctx).reshape(ctx, *x.shape)

    def _coordinates(self, picture: Prepared) -> NDArray[np.int64]:
        """(2, patches): the row and the column of each patch."""
        rows, columns = (side * self.family.merge for side in picture.grid)
        return square_coordinates(rows, columns, self.family.merge).reshape(2, -1)

    def _patches(self, pictures: Pictures) -> Pixels:
        rows, columns = self._coordinates(pictures[0])
        patches = cut_patches(stack_pixels(pictures), self.family.patch)[
            :, rows * (columns.max() + 1) + columns
        ]
        return patches.reshape(-1, patches.shape[-1])

    def _positions(self, pictures: Pictures) -> NDArray[np.int32]:
        return rope_axes(np.tile(self._coordinates(pictures[0]), len(pictures)))

    def _factors(self, pictures: Pictures) -> NDArray[np.float32]:
        """Rows and columns take turns in the frequencies of one axis: those of columns are lower by half a step."""
        quarter = self.shape.head // 4
        return np.repeat([1, self.base ** (2 / self.shape.head)], quarter).astype(np.float32)
