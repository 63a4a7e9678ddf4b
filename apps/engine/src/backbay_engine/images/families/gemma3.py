"""Gemma 3: SigLIP over one square, pooled to a few rows that see each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...encoders.block import Norm
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import HALF, as_f32, colour_scale, first_present, square_grid
from ...models.nn import Weights
from ...text.tokenizers import Tokenizer
from ..contract import VisionFamily
from ..parts.towers import SiglipTower
from ..preparations.stretched import Gemma3Preparation
from ..prepared_picture import Prepared

POOL = whole("vision.projector.scale_factor", 1, 1 << 10)
TOKENS = [whole(name, 1, 1 << 20) for name in ("mm_tokens_per_image", "mm.tokens_per_image")]
DEFAULT_POOL, DEFAULT_TOKENS = 4, 256
PROJECTIONS = "mm.input_projection.weight", "mm.mm_input_projection.weight"
BEGIN, SOFT, END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


@final
class Gemma3Family(VisionFamily):
    """A projector file, or a single file, whose tensors have the names of the hub."""

    placeholder = marker = BEGIN
    texts = ("gemma3",)

    def prepares(self) -> Gemma3Preparation:
        side, self.patch, self.grid = square_grid(self.config)
        self.pool = self._pool(self.grid)
        self.span = (self.grid // self.pool) ** 2
        return Gemma3Preparation(size=side, tokens=self.span, **colour_scale(self.config, HALF))

    @property
    def vector(self) -> int:
        return self.extent(0, *PROJECTIONS)

    def _pool(self, side: int) -> int:
        """The patches of a row that become one."""
        if self.config.architecture == "clip":
            pool, key = POOL.of(self.config, DEFAULT_POOL), POOL
        else:
            key = next((key for key in TOKENS if key.name in self.config), TOKENS[0])
            pool = side // isqrt(key.of(self.config, DEFAULT_TOKENS)) if side else 0
        if not pool or side % pool:
            raise key.refuse(self.config, f"a division of {side} by {side} patches into equal squares")
        return pool

    def words(self) -> tuple[str, ...]:
        return BEGIN, END

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        begin, end = (placeholder_id(tokenizer, word) for word in self.words())
        placed = rows_in_runs(placeholder_id(tokenizer, SOFT), picture.tokens, [[begin], [end]])
        return replace(placed, before="\n\n", after="\n\n", sees_itself=True)

    def cost(self, picture: Prepared) -> int:
        return self.grid**2

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(SiglipTower):
    def __init__(self, family: Gemma3Family, backend: Backend) -> None:
        weights = Weights(backend)
        super().__init__(weights, backend, family.patch, family.grid**2)
        self.family, mm = family, weights.at("mm.")
        self.soft_norm = Norm(mm, ("soft_emb_norm", "mm_soft_emb_norm"), self.width, 1e-6, root=True)
        projection = first_present(mm, "input_projection", "mm_input_projection")
        self.projection = mm.need(f"{projection}.weight", None, self.width)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        side, pool = self.family.grid, self.family.pool
        x = self.norm(ctx, x).reshape(ctx, self.width, side, side, inputs.count)
        x = x.permute(ctx, 2, 0, 1, 3).contiguous(ctx)  # (side, side, width, count)
        x = x.avg_pool2d(ctx, pool, pool).permute(ctx, 1, 2, 0, 3).contiguous(ctx)
        x = self.soft_norm(ctx, x.reshape(ctx, self.width, -1))
        return self._projected(ctx, x)

    def _projected(self, ctx: Context, x: Tensor) -> Tensor:
        """The matrix is stored transposed against all others; quantized rows must be converted first."""
        weight = as_f32(ctx, self.projection) if self.projection.dtype.is_quantized else self.projection
        matrix = weight.reshape(ctx, weight.dim(0), weight.dim(1))
        return matrix.permute(ctx, 1, 0).contiguous(ctx).mulmat(ctx, x)
