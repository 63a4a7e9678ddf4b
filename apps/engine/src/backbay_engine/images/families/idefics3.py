"""Idefics 3 and SmolVLM: SigLIP over tiles and the whole picture; a square of patches becomes a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.shape import HALF, colour_scale, square_grid
from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import VisionFamily
from ..parts.patches import pixel_shuffle
from ..parts.towers import SiglipTower
from ..preparations.tiles import Idefics3Preparation
from ..prepared_picture import Prepared

FACTOR = whole("vision.projector.scale_factor", 1, 64)
EDGE = whole("vision.preproc_image_size", 1, 4096)
EDGE_TILES = 4  # of the longest edge in the published models; old files do not say
AROUND, IMAGE, WHOLE = "<fake_token_around_image>", "<image>", "<global-img>"


@final
class Idefics3Family(VisionFamily):
    """A projector file."""

    placeholder = marker = IMAGE
    projections = ("mm.model.fc.weight",)

    def prepares(self) -> Idefics3Preparation:
        side, self.patch, self.grid = square_grid(self.config)
        self.factor = FACTOR.of(self.config, 2)
        if self.grid % self.factor:
            raise FACTOR.refuse(self.config, f"a divisor of {self.grid}, the patches of a row")
        edge, rows = EDGE.of(self.config, EDGE_TILES * side), (self.grid // self.factor) ** 2
        return Idefics3Preparation(size=side, tokens=rows, edge=edge, **colour_scale(self.config, HALF))

    def words(self) -> tuple[str, ...]:
        return (AROUND,)

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        """Each tile after its row and column, lines of tiles on lines of text, and the whole picture last."""
        rows, columns = picture.grid
        before = [
            ("\n" if row and not column else "") + f"{AROUND}<row_{row + 1}_col_{column + 1}>"
            for row in range(rows)
            for column in range(columns)
        ]
        texts = [*before, ("\n\n" if before else "") + AROUND + WHOLE, AROUND]
        between = [tokenizer.encode(each, add_special=False) for each in texts]
        return rows_in_runs(placeholder_id(tokenizer, IMAGE), picture.tokens // (len(texts) - 1), between)

    def cost(self, picture: Prepared) -> int:
        return int(picture.pixels.shape[1]) * self.grid**2

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Network(self, backend)


@final
class _Network(SiglipTower):
    def __init__(self, family: Idefics3Family, backend: Backend) -> None:
        weights, self.family = Weights(backend), family
        super().__init__(weights, backend, family.patch, family.grid**2)
        self.projection = Linear(weights, "mm.model.fc", self.width * family.factor**2, family.width)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.projection(
            ctx, pixel_shuffle(ctx, self.norm(ctx, x), self.family.grid, self.family.factor)
        )
