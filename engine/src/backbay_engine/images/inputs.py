"""The host's data of an encoder's graph: leaves that are filled anew for each group of pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from backbay import BackbayError, Context, DType, Tensor

from .prepared import Prepared

Pictures: TypeAlias = Sequence[Prepared]
FromPictures: TypeAlias = Callable[[Pictures], NDArray[Any]]


@final
class Inputs:
    """Pictures of one shape, as leaves of a traced encoder: filled again with each group of pictures of the shape."""

    def __init__(self, ctx: Context, pictures: Pictures) -> None:
        self.pictures = pictures
        self._host = ctx.input()
        self._filled: dict[str, tuple[Tensor, FromPictures]] = {}

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
        if name in self._filled:
            return self._filled[name][0]
        array = function(self.pictures)
        kind = dtype or (DType.I32 if array.dtype.kind in "iub" else DType.F32)
        leaf = self._host.empty(kind, *array.shape[::-1])
        self._filled[name] = (leaf, function)
        _write(leaf, name, array)
        return leaf

    def fill(self, pictures: Pictures) -> None:
        """Fill the leaves with the data of as many other pictures of the same shape."""
        self.pictures = pictures
        for name, (leaf, function) in self._filled.items():
            _write(leaf, name, function(pictures))


def stacked(pictures: Pictures) -> NDArray[np.float32]:
    """The pixels of all pictures, one after the other in the first dimension."""
    return np.concatenate([picture.pixels for picture in pictures])


def _write(leaf: Tensor, name: str, array: NDArray[Any]) -> None:
    if array.shape[::-1] != leaf.shape:
        raise BackbayError(
            f"input {name!r}: pictures gave {list(array.shape[::-1])} where earlier ones of their key gave "
            f"{list(leaf.shape)}; put the value that changes the shape into VisionFamily.key"
        )
    if leaf.dtype.is_integer:
        leaf.from_ints(array)
    else:
        leaf.from_floats(array)
