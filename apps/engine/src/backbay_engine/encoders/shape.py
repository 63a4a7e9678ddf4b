"""The dimensions of an encoder, by a file's metadata, and the names of its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Tensor
from backbay.gguf import Config, Key, number, numbers, whole

from ..models.nn import Shape, Weights

MOST = 1 << 20
KIND = {"v.": "vision", "a.": "audio"}
"""The first part of keys, by that of the names of tensors."""
SIDE = whole("vision.image_size", 1, 1 << 14)
PATCH = whole("vision.patch_size", 1, 1 << 10)
MEAN = numbers("vision.image_mean")
DEVIATION = numbers("vision.image_std")

Colour = tuple[float, float, float]
CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class EncoderShape:
    """The dimensions of an encoder's blocks."""

    blocks: int
    width: int
    heads: int
    hidden: int
    eps: float

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def attention(self) -> Shape:
        return Shape(self.width, self.heads, self.heads, self.head, self.head, self.hidden, 0, 0)

    @classmethod
    def of(
        cls, backend: Backend, hidden: int | None = None, eps: float | None = None, *, prefix: str = "v."
    ) -> Self:
        """The shape that a file states; some files state no `hidden`, which their tensors then tell, or no `eps`.

        prefix  of the names of the encoder's tensors
        """
        config, kind = backend.config, KIND[prefix]
        block_count, head_count = block_count_key(kind), head_count_key(kind)
        width = width_key(kind).of(config)
        heads, blocks = head_count.of(config), block_count.of(config)
        if width % heads:
            raise head_count.refuse(config, f"a divisor of the width {width}")
        beyond = f"{prefix}blk.{blocks}."
        if backend.model is not None and any(name.startswith(beyond) for name in backend.model.tensors):
            raise block_count.refuse(
                config, f"a count that includes {beyond}*"
            )  # without it, rows are garbage
        stated = whole(f"{kind}.feed_forward_length", 1, MOST).of(config) if hidden is None else hidden
        epsilon = number(f"{kind}.attention.layer_norm_epsilon", 0, 1)
        return cls(
            blocks, width, heads, stated, epsilon.of(config) if eps is None else epsilon.of(config, eps)
        )


def block_count_key(kind: str) -> Key[int]:
    return whole(f"{kind}.block_count", 1, 1 << 10)


def width_key(kind: str) -> Key[int]:
    return whole(f"{kind}.embedding_length", 1, MOST)


def head_count_key(kind: str) -> Key[int]:
    return whole(f"{kind}.attention.head_count", 1, MOST)


def square_grid(config: Config) -> tuple[int, int, int]:
    """The side of a picture or tile in pixels, the side of a patch, which divides it, and the patches of a row."""
    side, patch = SIDE.of(config), PATCH.of(config)
    if side % patch:
        raise PATCH.refuse(config, f"a divisor of the image_size {side}")
    return side, patch, side // patch


class ColourScale(TypedDict):
    """The mean and the deviation of each colour."""

    mean: Colour
    std: Colour


def colour_scale(config: Config, default: tuple[Colour, Colour]) -> ColourScale:
    """The colours that a file states."""
    mean, deviation = _colour(config, MEAN, default[0]), _colour(config, DEVIATION, default[1])
    if min(deviation) <= 0:
        raise DEVIATION.refuse(config, "numbers above 0")
    return {"mean": mean, "std": deviation}


def _colour(config: Config, key: Key[NDArray[np.float64]], default: Colour) -> Colour:
    values = key.of(config, default)
    if len(values) != 3:
        raise key.refuse(config, "three numbers")
    red, green, blue = map(float, values)
    return red, green, blue


def first_present(weights: Weights, *names: str) -> str:
    """The first of these names under which the file has a weight, or else the first."""
    return next((name for name in names if f"{name}.weight" in weights), names[0])


def as_f32(ctx: Context, x: Tensor) -> Tensor:
    """A table of a file in f32, in which other ops add to it; files of f16 have tables of positions in f16, too."""
    return x if x.dtype is DType.F32 else x.cast(ctx, DType.F32)
