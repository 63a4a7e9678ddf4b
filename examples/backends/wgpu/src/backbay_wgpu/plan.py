"""A graph as dispatches over buffers that its results share."""

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backbay.plugin import Cancel, Entry, Graph, Node, Plan, assign_slots, check_cancel, gather

from .device import DeviceBuffer
from .shaders import LANES, Shader, code, given, given_nbytes

if TYPE_CHECKING:
    from .backend import WgpuBackend

DEVICE = "WGPU:0"
GRAPH = Entry(DEVICE, "graph")
ALIGNED = 256  # offsets of bindings, in bytes
AT_ONCE = 256  # dispatches that are handed over together; a cancelled run stops between them
WIDEST = 65535  # workgroups in a dimension


@dataclass
class Dispatch:
    """A dispatch, and a copy before it: of a storage that it would read and write at once."""

    pipeline: Any
    bound: Any
    groups: tuple[int, int]
    copied: tuple[Any, Any, int] | None


class WgpuPlan(Plan):
    def __init__(self, backend: "WgpuBackend", graph: Graph) -> None:
        self.backend, self.device = backend, backend.device
        self.slots, sizes = assign_slots(graph)
        work = [
            (node, self._shader(node)) for node in graph.nodes if node.op is not None and not node.op.view
        ]
        given_sizes = [given_nbytes(shader) for _, shader in work]
        starts = np.cumsum([0, *[nbytes + -nbytes % ALIGNED for nbytes in given_sizes]])
        self.twice = max([self._copied(node, shader) for node, shader in work], default=0)
        sizes = [*sizes, int(starts[-1]), self.twice]
        self.nbytes = sum(sizes)
        holds = backend.params.alloc_memory
        self.buffers: list[DeviceBuffer] = backend.ledger.take(
            GRAPH, self.nbytes, lambda: self._allocate(sizes) if holds else []
        )
        self.dispatches: list[Dispatch] = []
        if holds and work:
            data = [given(shader, node) for node, shader in work]
            whole = np.zeros(int(starts[-1]), np.uint8)
            for start, each in zip(starts, data, strict=False):
                whole[start : start + each.nbytes] = each.view(np.uint8)
            self.buffers[-2].write(whole)
            for (node, shader), start, each in zip(work, starts, data, strict=False):
                if each[0]:
                    self.dispatches.append(self._dispatch(node, shader, int(start), each))

    def _allocate(self, sizes: list[int]) -> list[DeviceBuffer]:
        made: list[DeviceBuffer] = []
        try:
            made.extend(DeviceBuffer(self.device, size) for size in sizes)
        except MemoryError:
            for buffer in made:
                buffer.close()
            raise
        return made

    def _shader(self, node: Node) -> Shader:
        assert node.op is not None
        shader: Shader = node.op.spread(self.backend.kernels[node.op])(*node.args)
        return shader

    @staticmethod
    def _copied(node: Node, shader: Shader) -> int:
        """The bytes of a storage that the kernel of a write reads and writes."""
        return node.storage.nbytes if any(one.storage is node.storage for one in shader.operands) else 0

    def _buffer(self, node: Node) -> Any:
        leaf = node.storage.leaf
        held = self.buffers[self.slots[node.storage.index]] if leaf is None else leaf.buffer
        assert isinstance(held, DeviceBuffer)
        return held.buffer

    def _dispatch(self, node: Node, shader: Shader, start: int, data: np.ndarray) -> Dispatch:
        dtypes = tuple(operand.dtype for operand in shader.operands)
        pipeline = self.device.pipeline(code(shader.body, node.dtype, dtypes, shader.rows))
        target, copied = self._buffer(node), None
        parts = [(self.buffers[-2].buffer, start, data.nbytes), (target, 0, target.size)]
        for operand in shader.operands:
            buffer = self._buffer(operand)
            if operand.storage is node.storage:
                copied = target, self.buffers[-1].buffer, target.size
                buffer = self.buffers[-1].buffer
            parts.append((buffer, 0, buffer.size))
        groups = int(data[0]) if shader.rows else ceil(int(data[0]) / LANES)
        wide = min(groups, WIDEST)
        return Dispatch(pipeline, self.device.bound(pipeline, parts), (wide, ceil(groups / wide)), copied)

    def run(self, cancel: Cancel | None) -> None:
        if self.backend.params.debug.poison:
            for buffer in self.buffers[:-2]:
                buffer.poison()
        for first in range(0, len(self.dispatches), AT_ONCE):
            check_cancel(cancel)
            encoder, opened = self.device.encoder(), None
            for dispatch in self.dispatches[first : first + AT_ONCE]:
                if dispatch.copied is not None:
                    if opened is not None:
                        opened.end()
                    source, target, nbytes = dispatch.copied
                    encoder.copy_buffer_to_buffer(source, 0, target, 0, nbytes)
                    opened = None
                opened = opened or encoder.begin_compute_pass()
                opened.set_pipeline(dispatch.pipeline)
                opened.set_bind_group(0, dispatch.bound)
                opened.dispatch_workgroups(*dispatch.groups)
            opened.end()
            self.device.submit(encoder)
        check_cancel(cancel)

    def read(self, node: Node) -> NDArray[np.uint8]:
        buffer = self._buffer(node)
        if node.strides is None:
            return self.device.read(buffer, node.offset if node.nbytes else 0, node.nbytes)
        return gather(self.device.read(buffer, 0, node.storage.nbytes), node)

    def close(self) -> None:
        for buffer in self.buffers:
            buffer.close()
        self.buffers, self.dispatches = [], []
        self.backend.ledger.give_back(GRAPH, self.nbytes)

    def report(self) -> list[str]:
        return [f"{DEVICE} {len(self.dispatches)} dispatches"]
