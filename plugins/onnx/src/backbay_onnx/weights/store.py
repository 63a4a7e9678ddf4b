"""Weights in the forms that graphs ask for, each made once and shared by all sessions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

import numpy as np

from backbay import DType, Graph, Node
from backbay.gguf import ModelFile, TensorInfo
from backbay.internals import Array, Bytes, Ledger, numpy_view, return_freed_memory
from backbay.plugin import Cancel, Entry, Progress, check_cancel, decode

from ..lowering.lowered_model import LoweredModel
from ..memory.buffers import DeviceBuffer, FileBackedMemory
from ..session.device import Device
from .packing import ENCODINGS, PackedWeight

T = TypeVar("T")


def decode_floats(data: Bytes, dtype: DType) -> Array:
    """Stored bytes as float32, flat."""
    raw = data.reshape(-1, dtype.type_size) if dtype.is_quantized else numpy_view(data, dtype)
    return np.ascontiguousarray(decode(raw, dtype), np.float32).reshape(-1)


def named_data(node: Node) -> tuple[str, Bytes]:
    """The name of a leaf, and its bytes as they are stored."""
    leaf = node.leaf
    assert leaf is not None
    assert leaf.buffer is not None
    return leaf.name, leaf.buffer.read()


class WeightStore:
    """Converted weights by name, each made once for all sessions. Weights that stay as they are in the file are not kept.

    Every conversion is booked under its weight's entry before it is made, also if nothing is allocated.
    """

    def __init__(
        self,
        model: ModelFile | None,
        device: Device,
        ledger: Ledger,
        entry: Callable[[str], Entry],
        reads_stored: Callable[[TensorInfo], bool],
    ) -> None:
        self._model, self._device = model, device
        self._reads_stored = reads_stored  # whether native code reads a weight as it is stored
        self._ledger, self._entry = ledger, entry  # of a weight, by name
        self.files = FileBackedMemory()
        self._made: dict[tuple[str, str], Any] = {}
        self._booked: set[tuple[str, str]] = set()
        self._lock = threading.RLock()

    def packs(self, info: TensorInfo) -> bool:
        """Whether a weight is most likely a factor of a product, and is packed for it."""
        return (
            info.dtype in ENCODINGS
            and len(info.shape) >= 2
            and 0 not in info.shape
            and not self._reads_stored(info)
        )

    def floats(self, node: Node) -> Array:
        """A weight as float32: mapped, or converted once."""
        name, data = named_data(node)
        if node.dtype is DType.F32:
            return data.view(np.float32)
        return self._once(name, "floats", lambda: decode_floats(data, node.dtype))

    def packed(self, node: Node) -> PackedWeight:
        name, data = named_data(node)
        self._book(name, "packed", ENCODINGS[node.dtype].nbytes(node.size))  # unless that was done at opening
        return self._pack(name, node.dtype, data, node.size)

    def resident(self, node: Node, form: str) -> DeviceBuffer:
        """A weight's bytes, its floats, or a part of it when packed, on a device that is not the host."""
        name, data = named_data(node)

        def put() -> DeviceBuffer:
            if form == "floats":
                wanted = self.floats(node).view(np.uint8)
            else:
                wanted = data if form == "bytes" else self.packed(node).part(form)
            try:
                buffer = DeviceBuffer(self._device, wanted.size)
                buffer.write(wanted)
            except MemoryError as error:
                raise self._ledger.failure(self._entry(name), 0, str(error)) from error
            self._ledger.hold(self._entry(name))
            return buffer

        return self._once(name, f"resident {form}", put)

    def load(self, progress: Progress, cancel: Cancel | None) -> None:
        """Pack the weights that products will most likely read."""
        model = self._model
        assert model is not None
        wanted = [info for info in model.tensors.values() if self.packs(info)]
        total, done = sum(info.nbytes for info in wanted), 0
        for info in wanted:
            check_cancel(cancel)
            self._pack(info.name, info.dtype, model.data(info.name), prod(info.shape))
            done += info.nbytes
            progress(done / total)
        return_freed_memory()

    def book_packed(self, info: TensorInfo) -> None:
        """Book a packed weight instead of the file's bytes, which need not stay in memory."""
        self._book(info.name, "packed", ENCODINGS[info.dtype].nbytes(prod(info.shape)))

    def book_for(self, lowered: LoweredModel, graph: Graph) -> None:
        """Book the conversions that a lowered graph needs and that are not booked yet."""
        for leaf in lowered.leaves:
            node = graph.nodes[leaf.index]
            if node.kind == "parameter" and leaf.form == "floats" and node.dtype is not DType.F32:
                assert node.leaf is not None
                self._book(node.leaf.name, "floats", 4 * node.size)
        used = [(index, part) for _, index, part in lowered.parts]
        for index, part in (*used, *((part.index, part.part) for part in lowered.resident)):
            node = graph.nodes[index]
            if part in ("high", "low"):
                assert node.leaf is not None
                self._book(node.leaf.name, part, node.size // 2)

    def close(self) -> None:
        self._made.clear()
        self.files.close()

    def _pack(self, name: str, dtype: DType, data: Bytes, elements: int) -> PackedWeight:
        def pack() -> PackedWeight:
            packed = PackedWeight(dtype, data, elements, self.files.empty)
            if self._model is not None:
                self._model.drop_pages(name)
            return packed

        return self._once(name, "packed", pack)

    def _once(self, name: str, form: str, make: Callable[[], T]) -> T:
        with self._lock:
            if (name, form) not in self._made:
                self._made[name, form] = make()
            made: T = self._made[name, form]
            return made

    def _book(self, name: str, form: str, nbytes: int) -> None:
        with self._lock:
            if (name, form) not in self._booked:
                self._ledger.take(self._entry(name), nbytes, lambda: None, mapped=False)
                self._booked.add((name, form))
