"""Weights in the forms that graphs ask for, each made once and shared by all sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from backbay import DType, Node
from backbay.gguf import TensorInfo
from backbay.plugin import Array, Bytes, Cancel, Progress, check_cancel, decode, numpy_view

from ..memory.buffers import DeviceBuffer
from ..memory.file_backed import Spill, give_back
from .packing import LAYOUTS, PackedWeight

if TYPE_CHECKING:
    from backbay import Graph

    from ..backend import OnnxBackend
    from ..lowering.lowering import Lowered

T = TypeVar("T")


def numbers(data: Bytes, dtype: DType) -> Array:
    """Stored bytes as float32, flat."""
    raw = data.reshape(-1, dtype.type_size) if dtype.is_quantized else numpy_view(data, dtype)
    return np.ascontiguousarray(decode(raw, dtype), np.float32).reshape(-1)


def is_multiplied(info: TensorInfo) -> bool:
    """Whether a weight is most likely one side of a product, and has a layout for that."""
    return info.dtype in LAYOUTS and len(info.shape) >= 2 and 0 not in info.shape


class WeightStore:
    """Converted weights, by name. What stays as the file has it is bound where it is mapped, and not kept here.

    Every conversion is booked under its weight's entry before it is made, also where nothing is allocated.
    """

    def __init__(self, backend: OnnxBackend) -> None:
        self._backend = backend
        self.spill = Spill()
        self._made: dict[tuple[str, str], Any] = {}
        self._booked: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    def floats(self, node: Node) -> Array:
        """A weight as float32: where it is mapped, or converted once."""
        leaf = node.leaf
        assert leaf is not None
        assert leaf.buffer is not None
        data = leaf.buffer.read()
        if node.dtype is DType.F32:
            return data.view(np.float32)
        return self._once(leaf.name, "floats", lambda: numbers(data, node.dtype))

    def packed(self, node: Node) -> PackedWeight:
        leaf = node.leaf
        assert leaf is not None
        assert leaf.buffer is not None
        return self._pack(leaf.name, node.dtype, leaf.buffer.read(), node.size)

    # -- on a device that is not the host: one copy for all sessions ------------------------------------------

    def resident_part(self, node: Node, part: str) -> DeviceBuffer:
        assert node.leaf is not None
        return self._once(
            node.leaf.name, f"resident {part}", lambda: self._there(self.packed(node).part(part))
        )

    def resident_floats(self, node: Node) -> DeviceBuffer:
        assert node.leaf is not None
        return self._once(
            node.leaf.name, "resident floats", lambda: self._there(self.floats(node).view(np.uint8))
        )

    def resident_bytes(self, node: Node) -> DeviceBuffer:
        leaf = node.leaf
        assert leaf is not None
        assert leaf.buffer is not None
        data = leaf.buffer.read()
        return self._once(leaf.name, "resident bytes", lambda: self._there(data))

    def _there(self, data: Bytes) -> DeviceBuffer:
        buffer = DeviceBuffer(self._backend.device, data.size)
        buffer.write(data)
        return buffer

    def load(self, progress: Progress, cancel: Cancel | None) -> None:
        """Pack what products will most likely read."""
        model = self._backend.model
        assert model is not None
        wanted = [info for info in model.tensors.values() if is_multiplied(info)]
        total, done = sum(info.nbytes for info in wanted), 0
        for info in wanted:
            check_cancel(cancel)
            elements = info.nbytes // info.dtype.type_size * info.dtype.block_size
            self._pack(info.name, info.dtype, model.data(info.name), elements)
            done += info.nbytes
            progress(done / total)
        give_back()

    def book_packed(self, info: TensorInfo) -> None:
        """Take the memory of a packed weight, in place of the file's bytes, which need not stay in memory."""
        elements = info.nbytes // info.dtype.type_size * info.dtype.block_size
        self._book(info.name, "packed", LAYOUTS[info.dtype].nbytes(elements))

    def book_for(self, lowered: Lowered, graph: Graph) -> None:
        """Take the memory of what a lowered graph needs beside what was foreseen."""
        for wanted in lowered.leaves:
            node = graph.nodes[wanted.index]
            if node.kind == "parameter" and wanted.form == "floats" and node.dtype is not DType.F32:
                assert node.leaf is not None
                self._book(node.leaf.name, "floats", 4 * node.size)
        used = [(index, part) for _, index, part in lowered.parts]
        for index, part in (*used, *((part.index, part.part) for part in lowered.resident)):
            node = graph.nodes[index]
            assert node.leaf is not None
            if part in ("high", "low"):
                self._book(node.leaf.name, part, node.size // 2)

    def close(self) -> None:
        self._made.clear()
        self.spill.close()

    def _pack(self, name: str, dtype: DType, data: Bytes, elements: int) -> PackedWeight:
        return self._once(name, "packed", lambda: PackedWeight(dtype, data, elements, self.spill.empty))

    def _once(self, name: str, form: str, make: Callable[[], T]) -> T:
        with self._lock:
            if (name, form) not in self._made:
                self._made[name, form] = make()
            made: T = self._made[name, form]
            return made

    def _book(self, name: str, form: str, nbytes: int) -> None:
        with self._lock:
            if (name, form) not in self._booked:
                self._backend.ledger.take(self._backend.weight_entry(name), nbytes, lambda: None)
                self._booked.add((name, form))
