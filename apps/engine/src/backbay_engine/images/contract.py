"""The contract of models that see: how a family prepares pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from backbay.gguf import ModelFile

from ..encoders.contract import EncoderFamily
from ..errors import ImageError
from .image import Fit, Image, require_size
from .preparations.preparation import PictureLayout, Preparation
from .prepared_picture import Prepared

Pictures: TypeAlias = Sequence[Prepared]


class VisionFamily(EncoderFamily[Prepared]):
    """A family of models that see.

    image_tokens    most rows of one picture: larger pictures are made smaller, as the family allows
    """

    modality = "image"
    preparation: Preparation

    def __init__(self, file: ModelFile, image_tokens: int | None = None) -> None:
        super().__init__(file)
        self.preparation = self.prepares().limited(image_tokens)

    @property
    def name(self) -> str:
        return self.preparation.family

    @property
    def image_tokens(self) -> int:
        """Most rows of one picture."""
        return self.preparation.largest().tokens

    @abstractmethod
    def prepares(self) -> Preparation:
        """How pictures become pixels, by the metadata."""

    def prepared(self, given: Image) -> Prepared:
        return self.prepare(given.rgb(), given.fit)

    def key(self, picture: Prepared) -> Hashable:
        return picture.pixels.shape

    def prepare(self, rgb: NDArray[np.uint8], fit: Fit | None = None) -> Prepared:
        """The pixels of a picture, (height, width, 3), as the encoder takes them."""
        return self.preparation.prepare(rgb, fit)

    def largest(self) -> Prepared:
        """A black picture that needs most memory, for reserving."""
        plan, size = self.preparation.largest(), self.preparation.largest_size()
        return Prepared(
            np.zeros(plan.shape, np.float32), plan.tokens, plan.grid, size, self.name, plan.aspect_ratio_id
        )

    def smallest(self) -> Prepared:
        """A tiny black picture."""
        return self.prepare(np.zeros((2, 2, 3), np.uint8))

    def check_prepared(self, given: Prepared) -> None:
        """ImageError if a picture was prepared for another model, or no preparation makes it."""
        plan = self.preparation.largest()
        if (
            given.family != self.name
            or given.pixels.ndim != len(plan.shape)
            or given.tokens > plan.tokens
            or len(given.grid) != len(plan.grid)
        ):
            raise ImageError(
                f"a picture prepared for {given.family}, {list(given.pixels.shape)} with {given.tokens} tokens; "
                f"this model takes pictures for {self.name}, up to {list(plan.shape)} with {plan.tokens} tokens"
            )
        require_size("a prepared picture", given.size)
        made = PictureLayout(given.pixels.shape, given.tokens, tuple(given.grid), given.aspect_ratio_id)
        if made != (wanted := self.preparation.plan_of(given)):
            raise ImageError(
                f"{self.name} makes {wanted} of a picture like the prepared one, which is {made}"
            )
