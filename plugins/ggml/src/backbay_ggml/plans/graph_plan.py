"""A graph lowered to ggml once, with the memory of its outputs and constants, and run again and again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, final

import numpy as np

from backbay import BackbayError, BackendParams, Graph, Node, Placement, Plan
from backbay.internals import Bytes, Ledger, Timings
from backbay.plugin import GRAPH, Cancel, check_cancel, gather

from ..devices.device import Device, rounded_up
from ..devices.op_placer import OpPlacer
from ..library.abi import NULL, Ptr, ffi, leaf_tensor, new_pool, tensor_address, view_owner
from ..library.library import Library
from ..lowering.builder import GgmlBuilder, lower_graph
from ..ops import KERNEL_CALLS
from ..tensors.buffers import ALIGNMENT, TensorBuffer, host_memory
from ..weights.model_weights import ModelWeights
from .callbacks import OpClock, StopFlag
from .thread_choice import ThreadCountChooser

PlanType = TypeVar("PlanType")


@dataclass(frozen=True)
class GgmlPlanResources:
    """The parts of a backend that plans use, one of each for all contexts."""

    library: Library
    ledger: Ledger
    params: BackendParams
    threads: int
    thread_choices: Mapping[tuple[int, int], ThreadCountChooser]  # by kind of graph
    flash: bool  # whether attention may use flash attention
    cpu: Device
    device_of: Callable[[Placement], Device]
    weights: ModelWeights | None
    stop: StopFlag

    def product_home(self, name: str) -> Device | None:
        """The device with a copy of a weight that lies on the host, for products."""
        return self.weights.product_home(name) if self.weights is not None else None


class ComputeMemory(ABC, Generic[PlanType]):
    """Compute memory of all plans of a backend, because one of them runs at a time.

    It is as large as the largest plan needs. A larger plan replaces it; the last plan to leave frees it.
    """

    def __init__(self) -> None:
        self._plans: list[PlanType] = []

    def join(self, plan: PlanType) -> int:
        """Make room for one more plan; returns the bytes that were added for it."""
        before = self._total()
        try:
            self._plans.append(plan)
            self.make_room(plan)
        except BaseException:
            self.leave(plan)
            raise
        return max(0, self._total() - before)

    def leave(self, plan: PlanType) -> None:
        if plan in self._plans:  # else Ctrl-C came before it joined
            self._plans.remove(plan)
        if not self._plans:
            self._free()

    @abstractmethod
    def _total(self) -> int:
        """The bytes that are booked now."""

    @abstractmethod
    def make_room(self, plan: PlanType) -> None:
        """Replace the memory if it is too small for a plan."""

    @abstractmethod
    def _free(self) -> None:
        """Free all memory."""


class GgmlPlan(Plan):
    """A graph lowered to ggml: a CpuPlan, or a MultiDevicePlan over several devices.

    A new plan is empty; `build` makes it ready to run. A subclass links the ops, keeps outputs and constants, and joins
    a shared memory in `_build`.
    """

    def __init__(
        self,
        services: GgmlPlanResources,
        nodes: Graph,
        op_placer: OpPlacer | None = None,
        *,
        repeating: Collection[Node] = (),
    ) -> None:
        self._services, self._library, self._lib = services, services.library, services.library.lib
        self._nodes = nodes
        self._has_guards = services.params.debug.guard_bytes > 0
        self._pool: Ptr = NULL
        self._own: Ptr = NULL  # memory of this plan alone
        self._own_size = 0
        self._joined = False
        self._lying: dict[Node, Bytes] = {}  # outputs that were read, where each run puts them
        self._stand_ins: list[Ptr] = []  # tensors of a dry run, kept alive here
        self._builder = GgmlBuilder(
            services.library,
            flash=services.flash,
            weights=services.weights,
            op_placer=op_placer,
            repeating=repeating,
        )

    @final
    def build(self) -> Self:
        """Lower the graph, and allocate; if that fails, nothing stays allocated."""
        try:
            lower_graph(self._builder, self._nodes, KERNEL_CALLS, self._bind)
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    @abstractmethod
    def _build(self) -> None:
        """Link the ops, keep outputs and constants, join a shared memory, and set `nbytes`."""

    @abstractmethod
    def _compute(self, cancel: Cancel | None, clock: OpClock | None = None) -> None:
        """Run all ops; a clock notes when."""

    @abstractmethod
    def _timings(self, clock: OpClock) -> Timings:
        """Tells the times that a clock noted, also after `close`."""

    @abstractmethod
    def _output(self, tensor: Ptr, nbytes: int) -> Bytes:
        """The data of an output, where each run puts them."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the shared memory."""

    # -- running -----------------------------------------------------------------------------------------

    @final
    def run(self, cancel: Cancel | None, clock: OpClock | None = None) -> None:
        check_cancel(cancel)
        if self._is_empty:
            return
        self._compute(cancel, clock)
        for node in self._nodes.nodes if self._has_guards else ():
            if node.leaf is not None and isinstance(node.leaf.buffer, TensorBuffer):
                node.leaf.buffer.check_guards()

    @final
    def profile(self, cancel: Cancel | None) -> Timings:
        clock = OpClock(cancel)
        timings = tuple if self._is_empty else self._timings(clock)
        self.run(cancel, clock)
        return timings

    @final
    def read(self, node: Node) -> Bytes:
        found = self._lying.get(node)
        if found is not None:
            return found
        leaf = node.storage.leaf
        if leaf is not None:
            assert leaf.buffer is not None
            return gather(leaf.buffer.read(), node)
        size = node.storage.nbytes
        found = gather(self._output(self._holder(node), size) if size else np.zeros(0, np.uint8), node)
        if node.strides is None:  # otherwise `gather` has copied
            self._lying[node] = found
        return found

    def close(self) -> None:
        self._lying.clear()
        if self._joined:
            self._leave()
            self._joined = False
        if self._own != NULL:
            self._lib.ggml_backend_buffer_free(self._own)
            self._own = NULL
        if self._own_size:
            self._services.ledger.give_back(GRAPH, self._own_size)
            self._own_size = 0
        if self._pool != NULL:
            self._lib.ggml_free(self._pool)
            self._pool = NULL
        self._builder.close()

    # -- leaves and weights ------------------------------------------------------------------------------

    def _bind(self, node: Node) -> None:
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if not isinstance(buffer, TensorBuffer):
            self._bind_stand_ins(node, node.leaf.name)
            return
        self._builder.bind_leaf(node, buffer.tensor, buffer.device)
        if buffer.product is not None:
            self._builder.bind_product(node, *buffer.product)

    def _bind_stand_ins(self, node: Node, name: str) -> None:
        """Give a leaf or weight tensors without memory, for a dry run."""
        device, weights = self._services.device_of(node.placement), self._services.weights
        self._builder.bind_leaf(node, self._stand_in(node, device), device)
        product_home = self._services.product_home(name)
        copy = weights.stand_in(name) if weights is not None and device.is_cpu else None
        if product_home is not None:
            self._builder.bind_product(node, self._stand_in(node, product_home), product_home)
        elif copy is not None:
            self._stand_ins.append(copy)
            self._builder.bind_product(node, copy, device)

    def _stand_in(self, node: Node, device: Device) -> Ptr:
        self._stand_ins.append(device.stand_in(leaf_tensor(node.dtype, node.shape)))
        return self._stand_ins[-1]

    # -- ggml's graph ------------------------------------------------------------------------------------

    def _link(self, order: Sequence[Ptr]) -> None:
        """Make ggml's graph of ops in this order, in a pool of its own."""
        leaves = len(self._nodes.nodes) + len(self._builder.constants) + len(self._builder.order)
        self.graph_size = 2 * len(order) + leaves + 64
        self._pool = new_pool(self._lib, self._lib.ggml_graph_overhead_custom(self.graph_size, False) + 1024)
        self.graph: Ptr = self._lib.ggml_new_graph_custom(self._pool, self.graph_size, False)
        for tensor in order:
            self._lib.ggml_build_forward_expand(self.graph, tensor)
        count = self._lib.ggml_graph_n_nodes(self.graph)
        self._ops = [self._lib.ggml_graph_node(self.graph, n) for n in range(count)]
        self._is_empty = not self._ops

    def _unplace(self) -> None:
        """Take tensors, and views of them, out of the shared memory."""
        for tensor in self._floating:
            tensor.data = tensor.buffer = NULL

    # -- outputs and constants ---------------------------------------------------------------------------

    def _outputs(self) -> list[Ptr]:
        """The tensors that hold the outputs, each once; leaves and empty nodes have none."""
        nodes = [node for node in self._nodes.outputs if node.storage.leaf is None and node.storage.size]
        tensors = {tensor_address(tensor): tensor for tensor in map(self._holder, nodes)}
        for tensor in tensors.values():
            self._lib.ggml_set_output(tensor)
        return list(tensors.values())

    def _holder(self, node: Node) -> Ptr:
        return view_owner(self._builder.root(node))

    def _keep(self, tensors: Sequence[Ptr], copied: Sequence[Ptr] = ()) -> None:
        """Allocate memory that other plans do not overwrite: for some tensors, and for host copies of others."""
        sizes = [rounded_up(self._lib.ggml_nbytes(tensor), ALIGNMENT) for tensor in tensors]
        total = sum(sizes) + sum(int(self._lib.ggml_nbytes(tensor)) for tensor in copied)
        if total:
            holds = self._services.ledger.holds
            self._services.ledger.take(
                GRAPH, total, lambda: self._allocate(sum(sizes), copied) if holds else None
            )
            self._own_size = total
        self._place(tensors, sizes)
        if self._own != NULL:
            for tensor, data in self._builder.constants:
                self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)
        self._floating = [tensor for tensor in (*self._ops, *self._builder.blank) if tensor.data == NULL]

    def _allocate(self, nbytes: int, copied: Sequence[Ptr]) -> None:
        if nbytes:
            self._own = host_memory(self._library, nbytes)

    def _place(self, tensors: Sequence[Ptr], sizes: Sequence[int]) -> None:
        place: Any = NULL if self._own == NULL else self._lib.ggml_backend_buffer_get_base(self._own)
        place = ffi.cast("char *", place)
        for tensor, size in zip(tensors, sizes, strict=True):
            if self._own == NULL:
                self._services.cpu.stand_in(tensor)
            else:
                self._lib.ggml_backend_tensor_alloc(self._own, tensor, place)
                place += size


def check_status(status: int) -> None:
    """BackbayError if ggml reports a failed compute."""
    if status != 0:
        raise BackbayError(f"ggml ended a compute with status {status}")
