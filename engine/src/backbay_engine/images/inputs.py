"""The host's data of an encoder's graph: leaves that are filled anew for each group of pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import Context, DType, Tensor

from ..steps.leaves import Leaves
from .prepared import Prepared

Pictures: TypeAlias = Sequence[Prepared]
FromPictures: TypeAlias = Callable[[Pictures], NDArray[Any]]


@final
class Inputs:
    """Pictures of one shape, as leaves of a traced encoder: filled again with each group of pictures of the shape."""

    def __init__(self, ctx: Context, pictures: Pictures) -> None:
        self._leaves = Leaves(ctx, pictures, "VisionFamily.key")

    @property
    def pictures(self) -> Pictures:
        return self._leaves.data

    @property
    def first(self) -> Prepared:
        """The first picture; a graph may depend on its shape, never on its pixels."""
        return self.pictures[0]

    @property
    def count(self) -> int:
        """The number of pictures."""
        return len(self.pictures)

    def leaf(self, name: str, function: FromPictures, dtype: DType | None = None) -> Tensor:
        """A leaf that each group fills with `function(pictures)`: i32 for integers, else f32, or `dtype`.

        The leaf's shape is the array's, reversed. Asking for a name again gives the same leaf.
        """
        return self._leaves.leaf(name, function, dtype)

    def fill(self, pictures: Pictures) -> None:
        """Fill the leaves with the data of as many other pictures of the same shape."""
        self._leaves.fill(pictures)


def stacked(pictures: Pictures) -> NDArray[np.float32]:
    """The pixels of all pictures, one after the other in the first dimension."""
    return np.concatenate([picture.pixels for picture in pictures])
