"""The context: it makes leaves, records a graph, and computes it any number of times."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from operator import index
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from ..data.leaf import to_array
from ..errors import DTypeError, ShapeError
from ..graph.graph import Cancel
from ..types.dtype import CONTRACT, DType
from ..types.gpu_layers import MAX_LAYERS, Placement
from ..types.spec import Spec, check_shape
from .recording import Recording
from .tensor import Tensor
from .traced_graph import Counters

if TYPE_CHECKING:
    from ..backend.backend import Backend


class Context:
    """A graph under construction, which `compute` runs. `input()` and `layer(i)` are the same graph, with a placement.

    A context owns the leaves that it makes: they live until it is closed. Other contexts may use them.
    """

    __slots__ = ("placement", "recording")

    def __init__(self, recording: Recording, placement: Placement) -> None:
        self.recording = recording
        self.placement = placement

    @property
    def backend(self) -> Backend:
        return self.recording.backend

    @property
    def counters(self) -> Counters:
        """The counters of this context: nodes traced, compilations, runs, bytes allocated."""
        return self.recording.counters

    @property
    def max_graph_nodes(self) -> int:
        return self.recording.max_nodes

    def input(self) -> Context:
        """This context, for inputs: tensors made through it live in host memory."""
        self.recording.check_usable()
        return Context(self.recording, Placement(host=True))

    def layer(self, i: int) -> Context:
        """This context, for layer i of the model: tensors made through it live on the layer's device."""
        if not 0 <= i < MAX_LAYERS:
            raise ShapeError(f"layer must be in [0, {MAX_LAYERS}), got {i}")
        self.recording.check_usable()
        return Context(self.recording, Placement(layer=i))

    def empty(self, dtype: DType, *shape: int, row_axis: int | None = None) -> Tensor:
        """A leaf with undefined contents.

        `row_axis` is for a state, such as a cache: the dimension along which it is filled, from 0 on. A backend may
        then bind only the prefix of rows that a graph uses.
        """
        if not isinstance(dtype, DType):
            raise DTypeError(f"expected a dtype, which comes first, such as DType.F32, got {_brief(dtype)}")
        if dtype not in CONTRACT:
            raise DTypeError(f"expected a dtype that tensors may hold, got {dtype!r}")
        extents = _shape(shape)
        check_shape(dtype, extents)
        if row_axis is not None and not 0 <= row_axis < len(extents):
            raise ShapeError(f"row_axis must be in [0, {len(extents)}), got {row_axis}")
        return self.recording.add_leaf(Spec(dtype, extents), self.placement, row_axis)

    def zeros(self, dtype: DType, *shape: int, row_axis: int | None = None) -> Tensor:
        tensor = self.empty(dtype, *shape, row_axis=row_axis)
        if tensor.leaf is not None:
            tensor.leaf.zero()
        return tensor

    def from_floats(self, data: object, *shape: int) -> Tensor:
        """An f32 leaf of these numbers: a NumPy array, list or buffer, dimension 0 innermost.

        The default shape is that of the data, reversed: a NumPy array of (3, 64) becomes f32[64,3].
        """
        array = to_array(data, np.float32)
        return self.empty(DType.F32, *(shape or array.shape[::-1])).from_floats(array)

    def from_ints(self, data: object, *shape: int) -> Tensor:
        """An i32 leaf of these integers; data and shape as in from_floats."""
        array = to_array(data, np.int32)
        return self.empty(DType.I32, *(shape or array.shape[::-1])).from_ints(array)

    def from_bytes(self, dtype: DType, data: object, *shape: int) -> Tensor:
        """A leaf of these bytes, in GGUF's layout."""
        return self.empty(dtype, *shape).from_bytes(data)

    def arange(self, start: float, stop: float, step: float = 1, dtype: DType = DType.F32) -> Tensor:
        """A leaf of start, start + step, ... below stop (above it, if step is negative)."""
        if any(isinstance(number, DType) for number in (start, stop, step)):
            raise DTypeError("arange: start, stop and step are numbers; the dtype comes last, as dtype=")
        if step == 0 or not all(map(isfinite, (start, stop, step))):
            raise ShapeError(f"arange: step must not be 0, and all must be finite: {start}, {stop}, {step}")
        leaf = self.empty(dtype, max(0, ceil((stop - start) / step)))  # raises here if it is too large
        numbers = np.arange(start, stop, step)
        return leaf.from_ints(numbers.astype(np.int64)) if dtype.is_integer else leaf.from_floats(numbers)

    def forward(self, *tensors: Tensor) -> Context:
        """Add tensors to the graph's roots, behind the earlier ones; returns the context.

        Roots run in this order, each after its operands.
        """
        self.recording.forward(tensors)
        return self

    def compute(self, *tensors: Tensor, cancel: Cancel | None = None) -> None:
        """Add `tensors` to the roots, and run the graph; afterwards `tensors` can be read.

        The first call compiles the graph. Further calls run it again, with the current data of its leaves.
        """
        self.recording.compute(tensors, cancel)

    def reserve(self) -> None:
        """Compile and allocate without running: a later compute cannot fail for lack of memory."""
        self.recording.reserve()

    def export(self, folder: str | PathLike[str], names: Mapping[str, Tensor] | None = None) -> Path:
        """Write the graph of the roots, with its weights, as a model for the backend's engine alone, without backbay.

        Returns the path of the file to open. `names` are names for leaves and results in the model. Sizes are fixed to
        those of this graph. BackbayError if the backend cannot write models.
        """
        return self.recording.export(Path(folder), names or {})

    def set_batch_size(self, n: int) -> None:
        """Tell the backend the batch size; it decides whether moving weights from host memory to a device pays."""
        if n < 1:
            raise ShapeError(f"a batch size is at least 1, got {n}")
        self.recording.set_batch_size(n)

    def close(self) -> None:
        """Free the graph and its leaves, after a running compute. Closing again does nothing."""
        self.recording.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _shape(shape: tuple[object, ...]) -> tuple[int, ...]:
    """Extents as integers, given one by one or as one sequence."""
    extents = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return tuple([_extent(n) for n in extents])


def _extent(n: object) -> int:
    try:
        if not isinstance(n, DType):  # an IntEnum, but as an extent it is a mistake
            return index(n)  # type: ignore[arg-type]  # TypeError says it is none
    except TypeError:
        pass
    hint = "; the dtype comes first, or follows from the data" if isinstance(n, DType) else ""
    raise ShapeError(f"a shape is made of integers, got {_brief(n)}{hint}")


def _brief(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str, type)) else type(value).__name__
