"""The leaves of a traced graph that are filled with the host's data, anew for each compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar, final

from numpy.typing import NDArray

from backbay import BackbayError, Context, DType, Tensor

Data = TypeVar("Data")
Array: TypeAlias = NDArray[Any]


@final
class Leaves(Generic[Data]):
    """Leaves that functions fill from data, such as a step; a graph serves all data of one key.

    key  what must tell apart data that give leaves of other shapes, for the error that says so
    """

    def __init__(self, ctx: Context, data: Data, key: str) -> None:
        self.data = data
        self._host, self._key = ctx.input(), key
        self._filled: dict[str, tuple[Tensor, Callable[[Data], Array], Callable[[Array], object]]] = {}

    def leaf(self, name: str, function: Callable[[Data], Array], dtype: DType | None = None) -> Tensor:
        """A leaf that is filled with `function(data)`: i32 for integers, else f32, or `dtype`.

        The leaf's shape is the array's, reversed. Asking for a name again gives the same leaf.
        """
        if name in self._filled:
            return self._filled[name][0]
        array = function(self.data)
        kind = dtype or (DType.I32 if array.dtype.kind in "iub" else DType.F32)
        leaf = self._host.empty(kind, *array.shape[::-1])
        write = leaf.from_ints if kind.is_integer else leaf.from_floats
        self._filled[name] = leaf, function, write
        write(array)
        return leaf

    def fill(self, data: Data) -> None:
        """Fill the leaves with other data of the same key."""
        self.data = data
        for name, (leaf, function, write) in self._filled.items():
            array = function(data)
            if array.shape[::-1] != leaf.shape:
                raise BackbayError(
                    f"input {name!r}: its data have the shape {list(array.shape[::-1])} where earlier ones of their "
                    f"key had {list(leaf.shape)}; put the value that changes the shape into {self._key}"
                )
            write(array)
