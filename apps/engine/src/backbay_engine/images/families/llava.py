"""LLaVA 1.5 and 1.6, MobileVLM 1 and 2: CLIP over one square, or over a picture and its tiles, and a small projector."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, ModelFileError, Tensor
from backbay.gguf import flag, wholes

from ...encoders.block import Norm, TwoLayerPerceptron
from ...encoders.contract import EncoderInputs, EncoderNetwork, MediaPlace, placeholder_id, rows_in_runs
from ...encoders.convolution import DepthwiseConvolution
from ...encoders.shape import CLIP, EncoderShape, as_f32, colour_scale, square_grid
from ...models.nn import Linear, Weights
from ...models.nn.feed_forward import gelu, quick_gelu
from ...text.tokenizers import Tokenizer
from ..contract import Pictures, VisionFamily
from ..parts.patches import pool_squares
from ..parts.towers import ClipTower
from ..preparations.stretched import CentreCropPreparation
from ..preparations.tiles import AnyresPreparation
from ..prepared_picture import Prepared

PINPOINTS = wholes("vision.image_grid_pinpoints", 1, 1 << 14)
FEATURES = wholes("vision.feature_layer", 0, 1 << 10)
GELU = flag("use_gelu")
NEWLINES = "model.image_newline", "v.image_newline"
FIRST, SECOND = (
    ("mm.model.mlp.1", "mm.model.mlp.3"),
    ("mm.model.mlp.0", "mm.model.mlp.2"),
)  # of MobileVLM 1 and 2
BLOCKS = ("mm.model.mb_block.1.block.", "mm.model.mb_block.2.block.")


class ClipFamily(VisionFamily):
    """A projector file, whose rows stand in the place of one token."""

    placeholder = marker = "<image>"
    patch: int
    grid: int

    def place(self, picture: Prepared, tokenizer: Tokenizer) -> MediaPlace:
        return rows_in_runs(placeholder_id(tokenizer, "<image>"), picture.tokens, [[], []])

    def cost(self, picture: Prepared) -> int:
        return self.tiles(picture) * (self.grid**2 + 1)

    @staticmethod
    def tiles(picture: Prepared) -> int:
        """The squares that are encoded, the whole picture among them."""
        return int(picture.pixels.size // (3 * picture.pixels.shape[-1] ** 2))


@final
class LlavaFamily(ClipFamily):
    """LLaVA; it is of version 1.6 if it has pinpoints, the sizes of canvases for tiles."""

    projections = ("mm.2.weight",)

    def prepares(self) -> CentreCropPreparation | AnyresPreparation:
        side, self.patch, self.grid = square_grid(self.config)
        shades, points = colour_scale(self.config, CLIP), PINPOINTS.of(self.config, None)
        if points is None:
            return CentreCropPreparation(size=side, tokens=self.grid**2, **shades)
        if len(points) % 2 or not len(points) or (points % side).any():
            raise PINPOINTS.refuse(self.config, f"heights and widths, multiples of the image_size {side},")
        pairs = tuple((int(height), int(width)) for height, width in points.reshape(-1, 2))
        return AnyresPreparation(size=side, patch=self.patch, pinpoints=pairs, **shades)

    def key(self, picture: Prepared) -> Hashable:
        return self.tiles(picture), picture.tokens

    def network(self, backend: Backend) -> EncoderNetwork:
        return _Llava(self, backend)

    def rows(self, pictures: Pictures) -> NDArray[np.int32]:
        """The features that become rows: the column of each, or the one after the last for a new line."""
        n, tiles = self.grid**2, self.tiles(pictures[0])
        line = n * tiles * len(pictures)
        found = [self._rows(picture, n * tiles * number, line) for number, picture in enumerate(pictures)]
        return np.concatenate(found).astype(np.int32)

    def _rows(self, picture: Prepared, first: int, line: int) -> NDArray[np.int64]:
        n = self.grid**2
        whole = first + np.arange(n)
        if not isinstance(self.preparation, AnyresPreparation):
            return whole
        numbers = first + n + np.arange(picture.grid[0] * picture.grid[1] * n)
        tiles = numbers.reshape(*picture.grid, self.grid, -1)
        canvas = tiles.swapaxes(1, 2).reshape(picture.grid[0] * self.grid, -1)
        rows, columns, top, left = self.preparation.unpadded(picture.size)
        kept = canvas[top : top + rows, left : left + columns]
        lines = np.concatenate([kept, np.full((len(kept), 1), line)], axis=1)
        return np.concatenate([whole, lines.ravel()])


class _Projected(ClipTower):
    """CLIP, and two products to the rows' features."""

    def __init__(
        self, family: ClipFamily, backend: Backend, names: tuple[str, str], between: int | None
    ) -> None:
        self.weights = weights = Weights(backend)
        activation = gelu if GELU.of(backend.config, False) else quick_gelu
        super().__init__(weights, EncoderShape.of(backend), activation, family.patch, family.grid**2)
        self._check_features(backend)
        self.product = TwoLayerPerceptron(weights, names, (self.width, between, family.width))

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

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        return self.product(ctx, self.features(ctx, x))


@final
class _Llava(_Projected):
    def __init__(self, family: LlavaFamily, backend: Backend) -> None:
        super().__init__(family, backend, ("mm.0", "mm.2"), None)
        self.family, self.newline = family, None
        if isinstance(family.preparation, AnyresPreparation):
            self.newline = self.weights.need(NEWLINES[0], family.width, or_else=NEWLINES[1:])
        self.weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        x = super().finish(ctx, x, kept, inputs)
        if self.newline is None:
            return x
        x = x.concat(ctx, as_f32(ctx, self.newline).reshape(ctx, -1, 1), 1)
        return x.rows(ctx, inputs.leaf("rows", self.family.rows))


@final
class MobileVLMFamily(ClipFamily):
    """MobileVLM: a projector of convolutions makes a row of four patches."""

    def prepares(self) -> CentreCropPreparation:
        side, self.patch, self.grid = square_grid(self.config)
        self.names = SECOND if "mm.model.peg.0.weight" in self.file.tensors else FIRST
        few = self.grid // 2 if self.names is SECOND else -(-self.grid // 2)
        return CentreCropPreparation(size=side, tokens=few**2, **colour_scale(self.config, CLIP))

    @property
    def vector(self) -> int:
        return self.extent(1, f"{self.names[1]}.weight")

    def network(self, backend: Backend) -> EncoderNetwork:
        return _MobileVLM(self, backend)


@final
class _MobileVLM(_Projected):
    def __init__(self, family: MobileVLMFamily, backend: Backend) -> None:
        super().__init__(family, backend, family.names, family.width)
        weights, width, eps = self.weights, family.width, self.shape.eps
        self.family, self.convolutions = family, list[_Squeezing]()
        if family.names is FIRST:
            blocks = enumerate(BLOCKS, 1)
            self.convolutions = [_Squeezing(weights.at(name), width, eps, stride) for stride, name in blocks]
        self.encoding = None if self.convolutions else DepthwiseConvolution(weights, "mm.model.peg.0", width)
        weights.check()

    def finish(self, ctx: Context, x: Tensor, kept: Sequence[Tensor], inputs: EncoderInputs) -> Tensor:
        side, width = self.family.grid, self.family.width
        x = super().finish(ctx, x, kept, inputs).reshape(ctx, width, side, side, inputs.count)
        if self.encoding is not None:
            x = pool_squares(ctx, x)
            x = x.add(ctx, self.encoding(ctx, x))
        for convolution in self.convolutions:
            x = convolution(ctx, x, inputs)
        return x.reshape(ctx, width, -1)


@final
class _Squeezing:
    """A convolution of each channel, a gate of each channel by its mean, and a product; the first adds its input."""

    def __init__(self, weights: Weights, width: int, eps: float, stride: int) -> None:
        self.stride = stride
        self.convolution = DepthwiseConvolution(weights, "0.0", width, stride)
        self.first_norm, self.last_norm = (Norm(weights, (name,), width, eps) for name in ("0.1", "2.1"))
        few = weights.extent("1.fc1.weight", 1)
        self.into, self.out = Linear(weights, "1.fc1", width, few), Linear(weights, "1.fc2", few or 1, width)
        self.product = Linear(weights, "2.0", width, width)

    def __call__(self, ctx: Context, x: Tensor, inputs: EncoderInputs) -> Tensor:
        """(width, columns, rows, pictures)"""
        three = inputs.leaf("three", lambda _: np.full(1, 3, np.float32))
        y = self.first_norm(ctx, self.convolution(ctx, x))
        y = y.mul(ctx, _hard_sigmoid(ctx, y, three))
        width, columns, rows, count = y.shape
        means = y.reshape(ctx, width, columns * rows, count).permute(ctx, 1, 0, 2).contiguous(ctx).mean(ctx)
        gate = self.out(ctx, self.into(ctx, means.reshape(ctx, width, count)).relu(ctx))
        y = y.mul(ctx, _hard_sigmoid(ctx, gate, three).reshape(ctx, width, 1, 1, count))
        y = self.product(ctx, y.reshape(ctx, width, -1)).reshape(ctx, width, columns, rows, count)
        y = self.last_norm(ctx, y)
        return y if self.stride > 1 else x.add(ctx, y)


def _hard_sigmoid(ctx: Context, x: Tensor, three: Tensor) -> Tensor:
    return x.add(ctx, three).clamp(ctx, 0.0, 6.0).scale(ctx, 1 / 6)
