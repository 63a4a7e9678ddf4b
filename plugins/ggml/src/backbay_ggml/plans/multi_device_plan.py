"""A graph over several devices, that is built once and run again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from backbay import BackbayError, Graph, Node, Plan
from backbay.plugin import Bytes, Cancel, Entry, check_cancel, gather

from ..devices.device import CPU, Device
from ..devices.device_choice import Steer
from ..library.abi import NULL, Ptr, ffi
from ..ops.builder import four, leaf_tensor
from ..ops.lowering import lower
from ..tensors.buffers import ALIGNMENT, TensorBuffer, host_memory
from .cancelling import watching
from .linking import floating, holder, holders, link

if TYPE_CHECKING:
    from ..backend import Ggml


@final
class ScheduledPlan(Plan):
    """ggml's graph, which op runs where, host memory for outputs and constants, and a place on the stage."""

    def __init__(self, backend: Ggml, graph: Graph) -> None:
        self._backend, self._lib, self._nodes = backend, backend.library.lib, graph
        self._stage = backend.stage
        self._pool: Ptr = NULL
        self._constants: Ptr = NULL
        self._booked = 0
        self._joined = False
        self._kept: list[Ptr] = []
        self._outputs: dict[int, tuple[Ptr, Bytes]] = {}
        self.need: list[int] = []  # of each device, as the stage measured it
        self._steer = Steer(
            backend.library, self._stage.devices, graph, backend.placed_on, backend.product_home
        )
        self._g = backend.builder(self._steer)
        try:
            lower(self._g, graph, self._bind)
            self.settled = self._steer.settled(self._g)
            self._link()
            self._keep()
            self.nbytes = self._booked
            if self.settled:
                self.nbytes += self._stage.join(self)
                self._joined = True
        except BaseException:
            self.close()
            raise

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        if not self.settled:
            return
        self._stage.prepare()
        with self._stage.session():
            with watching(self._backend.abort_flag, cancel):
                status = self._stage.run(self, cancel)
            check_cancel(cancel)  # set since, it may have stopped a device, which no status tells
            if status != 0:
                raise BackbayError(f"ggml ended a compute with status {status}")
            for tensor, data in self._outputs.values():
                self._lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(data), 0, data.size)
            self._stage.wait()
        if self._backend.params.debug.guard_bytes:
            self._check_guards()

    def read(self, node: Node) -> Bytes:
        leaf = node.storage.leaf
        if leaf is not None:
            assert leaf.buffer is not None
            return gather(leaf.buffer.read(), node)
        tensor = holder(self._g, node)
        data = np.zeros(0, np.uint8) if tensor is None else self._outputs[_key(tensor)][1]
        return gather(data[: node.storage.nbytes], node)

    def close(self) -> None:
        if self._joined:
            self._stage.leave(self)
            self._joined = False
        if self._constants != NULL:
            self._lib.ggml_backend_buffer_free(self._constants)
            self._constants = NULL
        if self._booked:
            self._backend.ledger.give_back(Entry(CPU, "graph"), self._booked)
            self._booked = 0
        if self._pool != NULL:
            self._lib.ggml_free(self._pool)
            self._pool = NULL
        self._outputs = {}
        self._g.close()

    def report(self) -> list[str]:
        return [f"{device.id} {self._backend.library.describe(tensor)}" for tensor, device in self.settled]

    def restore(self) -> None:
        """Take back what the scheduler wrote into the graph: copies for operands, and places."""
        for tensor, sources in self._sources:
            ffi.buffer(tensor.src)[:] = sources
        for tensor in self._floating:
            tensor.data = tensor.buffer = NULL

    # -- building ----------------------------------------------------------------------------------------

    def _bind(self, node: Node) -> None:
        """Give a leaf or weight its tensor, without memory where nothing is allocated, and its copy for products."""
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if not isinstance(buffer, TensorBuffer):
            self._bind_measured(node)
            return
        self._settle(node, buffer.tensor, buffer.device)
        if buffer.product is not None:
            self._settle_copy(node, *buffer.product)

    def _bind_measured(self, node: Node) -> None:
        def stand_in(device: Device) -> Ptr:
            self._kept.append(device.measured(leaf_tensor(node.dtype, four(node))))
            return self._kept[-1]

        device, name = (
            self._backend.placed_on(node.placement),
            node.leaf.name if node.leaf is not None else "",
        )
        self._settle(node, stand_in(device), device)
        copied = self._backend.product_home(name)
        arranged = self._backend.measured_copy(name) if device.is_cpu else None
        if copied is not None:
            self._settle_copy(node, stand_in(copied), copied)
        elif arranged is not None:
            self._kept.append(arranged)
            self._settle_copy(node, arranged, device)

    def _settle(self, node: Node, tensor: Ptr, device: Device) -> None:
        self._g.bind(node, tensor)
        self._steer.settle_leaf(node, tensor, device)

    def _settle_copy(self, node: Node, copy: Ptr, device: Device) -> None:
        self._g.bind_product(node, copy, device)
        self._steer.settle_copy(copy, device)

    def _link(self) -> None:
        """The graph in the order of the settled ops, and what is needed to restore it."""
        leaves = len(self._nodes.nodes) + len(self._g.constants) + len(self._g.order)
        self._pool, self.graph, self.graph_size = link(
            self._backend.library, [tensor for tensor, _ in self.settled], leaves
        )
        count = self._lib.ggml_graph_n_nodes(self.graph)
        nodes = [self._lib.ggml_graph_node(self.graph, n) for n in range(count)]
        self._sources = [(tensor, bytes(ffi.buffer(tensor.src))) for tensor in nodes]

    def _keep(self) -> None:
        """Host memory for constants, and for copies of the outputs: what devices hold, other plans overwrite."""
        kept = holders(self._g, self._nodes)
        for tensor in kept:
            self._lib.ggml_set_output(tensor)
        sizes = [-(-data.size // ALIGNMENT) * ALIGNMENT for _, data in self._g.constants]
        total = sum(sizes) + sum(int(self._lib.ggml_nbytes(tensor)) for tensor in kept)
        holds = self._backend.params.alloc_memory
        self._backend.ledger.take(
            Entry(CPU, "graph"), total, lambda: self._allocate(kept, sum(sizes)) if holds else None
        )
        self._booked = total
        self._settle_constants(sizes)
        self._floating = floating(self._backend.library, self.graph, self._g)

    def _allocate(self, kept: list[Ptr], constants: int) -> None:
        self._outputs = {
            _key(tensor): (tensor, np.empty(self._lib.ggml_nbytes(tensor), np.uint8)) for tensor in kept
        }
        if constants:
            self._constants = host_memory(self._backend.library, constants)

    def _settle_constants(self, sizes: list[int]) -> None:
        place: Ptr = NULL
        if self._constants != NULL:
            place = ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(self._constants))
        for (tensor, data), size in zip(self._g.constants, sizes, strict=True):
            if place == NULL:
                self._backend.cpu.measured(tensor)
            else:
                self._lib.ggml_backend_tensor_alloc(self._constants, tensor, place)
                self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)
                place += size

    def _check_guards(self) -> None:
        for node in self._nodes.nodes:
            if node.leaf is not None and isinstance(node.leaf.buffer, TensorBuffer):
                node.leaf.buffer.check_guards()


def _key(tensor: Ptr) -> int:
    return int(ffi.cast("uintptr_t", tensor))
