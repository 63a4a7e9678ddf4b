"""Idefics 3 and SmolVLM: SigLIP over tiles and the whole picture; a square of patches becomes a row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import final

from backbay import Backend, Context, Tensor
from backbay.gguf import whole

from ...models.nn import Linear, Weights
from ...text.tokenizers import Tokenizer
from ..contract import Network, Placed, VisionFamily, in_runs, stand_in
from ..inputs import Inputs
from ..parts import Groups, Siglip, shuffled
from ..parts.patches import patches_of
from ..parts.shape import HALF, colours, grid_of
from ..preparations import Split
from ..prepared import Prepared

FACTOR = whole("vision.projector.scale_factor", 1, 64)
EDGE = whole("vision.preproc_image_size", 1, 4096)
EDGE_TILES = 4  # of the longest edge in the published models; old files do not say
AROUND, IMAGE, WHOLE = "<fake_token_around_image>", "<image>", "<global-img>"


@final
class Idefics3(VisionFamily):
    """A projector file."""

    placeholder = marker = IMAGE

    def prepares(self) -> Split:
        self.side, self.patch = grid_of(self.config)
        self.grid = self.side // self.patch
        self.factor = FACTOR.of(self.config, 2)
        if self.grid % self.factor:
            raise FACTOR.refuse(self.config, f"a divisor of {self.grid}, the patches of a row")
        mean, deviation = colours(self.config, HALF)
        edge = EDGE.of(self.config, EDGE_TILES * self.side)
        rows = (self.grid // self.factor) ** 2
        return Split(size=self.side, tokens=rows, edge=edge, mean=mean, std=deviation)

    @property
    def width(self) -> int:
        return self.extent(1, "mm.model.fc.weight")

    def words(self) -> tuple[str, ...]:
        return (AROUND,)

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> Placed:
        """Each tile after its row and column, lines of tiles on lines of text, and the whole picture last."""
        rows, columns = picture.grid
        before = [
            ("\n" if row and not column else "") + f"{AROUND}<row_{row + 1}_col_{column + 1}>"
            for row in range(rows)
            for column in range(columns)
        ]
        texts = [*before, ("\n\n" if before else "") + AROUND + WHOLE, AROUND]
        between = [tokenizer.encode(each, add_special=False) for each in texts]
        return in_runs(stand_in(tokenizer, IMAGE), picture.tokens // (len(texts) - 1), between)

    def patches(self, picture: Prepared) -> int:
        return int(picture.pixels.shape[1]) * self.grid**2

    def key(self, picture: Prepared) -> Hashable:
        return picture.pixels.shape

    def network(self, backend: Backend) -> Network:
        return _Network(self, backend)


@final
class _Network(Network):
    def __init__(self, family: Idefics3, backend: Backend) -> None:
        weights = Weights(backend)
        self.family, self.grid = family, family.grid
        self.tower = Siglip(weights, backend, family.patch, self.grid**2)
        self.width, self.blocks = self.tower.width, self.tower.blocks
        self.projection = Linear(weights, "mm.model.fc", self.width * family.factor**2, family.width)
        weights.check()

    def start(self, ctx: Context, inputs: Inputs) -> Tensor:
        return self.tower.start(ctx, inputs.leaf("patches", partial(patches_of, patch=self.family.patch)))

    def block(self, ctx: Context, layer: int, x: Tensor, inputs: Inputs) -> Tensor:
        return self.tower.block(ctx, layer, x, [Groups(self.grid**2, x.dim(1) // self.grid**2)])

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: Inputs) -> Tensor:
        x = shuffled(ctx, self.tower.norm(ctx, x), self.grid, self.family.factor)
        return self.projection(ctx, x)
