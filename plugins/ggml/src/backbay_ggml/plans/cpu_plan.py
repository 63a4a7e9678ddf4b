"""A graph that is built once and run again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from backbay import BackbayError, Graph, Node, Plan
from backbay.plugin import Bytes, Cancel, check_cancel, gather

from ..devices.device import UNALLOCATED
from ..library.abi import NULL, Ptr, ffi
from ..ops.builder import four, leaf_tensor
from ..ops.lowering import lower
from ..tensors.buffers import ALIGNMENT, TensorBuffer, host_memory
from .cancelling import ABORTED, watching
from .linking import floating, holders, link

if TYPE_CHECKING:
    from ..backend import Ggml


@final
class GgmlPlan(Plan):
    """ggml's graph, the memory of its outputs and constants, and a place in the arena for the rest."""

    def __init__(self, backend: Ggml, graph: Graph) -> None:
        self._backend, self._lib, self._nodes = backend, backend.library.lib, graph
        self._graph_pool: Ptr = NULL
        self._own: Ptr = NULL
        self._own_size = 0
        self._measured: list[Ptr] = []
        self._placed = False
        self._g = backend.builder()
        try:
            lower(self._g, graph, self._bind)
            leaves = len(graph.nodes) + len(self._g.constants)
            self._graph_pool, self._graph, _ = link(backend.library, self._g.order, leaves)
            self._is_empty = self._lib.ggml_graph_n_nodes(self._graph) == 0
            self._keep_outputs()
            self._cplan = ffi.new(
                "ggml_cplan *", self._lib.ggml_graph_plan(self._graph, backend.threads, NULL)
            )
            self._floating = floating(backend.library, self._graph, self._g)
            self.nbytes = self._own_size + backend.arena.join(self._graph, self._cplan.work_size)
            self._placed = True
            self._generation = backend.arena.generation
        except BaseException:
            self.close()
            raise
        self._cplan.abort_callback = backend.abort_callback
        self._cplan.abort_callback_data = backend.abort_flag

    def run(self, cancel: Cancel | None) -> None:
        check_cancel(cancel)
        if self._is_empty:
            return
        if self._generation != self._backend.arena.generation:
            self._place_again()
        self._cplan.work_data = self._backend.arena.scratch
        if cancel is None:
            status = self._lib.ggml_graph_compute(self._graph, self._cplan)
        else:
            with watching(self._backend.abort_flag, cancel):
                status = self._lib.ggml_graph_compute(self._graph, self._cplan)
            check_cancel(cancel if status == ABORTED else None)
        if status != 0:
            raise BackbayError(f"ggml ended a compute with status {status}")
        if self._backend.params.debug.guard_bytes:
            self._check_guards()

    def read(self, node: Node) -> Bytes:
        leaf = node.storage.leaf
        if leaf is not None:
            assert leaf.buffer is not None
            return gather(leaf.buffer.read(), node)
        root = self._g.root(node)
        size = node.storage.nbytes
        data = np.frombuffer(ffi.buffer(root.data, size), np.uint8) if size else np.zeros(0, np.uint8)
        return gather(data, node)

    def close(self) -> None:
        if self._placed:
            self._backend.arena.leave()
            self._placed = False
        if self._own != NULL:
            self._lib.ggml_backend_buffer_free(self._own)
            self._own = NULL
        if self._own_size:
            self._backend.ledger.give_back(self._backend.graph_entry, self._own_size)
            self._own_size = 0
        if self._graph_pool != NULL:
            self._lib.ggml_free(self._graph_pool)
            self._graph_pool = NULL
        self._g.close()

    def report(self) -> list[str]:
        library = self._backend.library
        run = [tensor for tensor in self._g.order if tensor.op not in library.view_ops]
        return [f"CPU:0 {library.describe(tensor)}" for tensor in run]

    # -- building ----------------------------------------------------------------------------------------

    def _bind(self, node: Node) -> None:
        """Give a leaf or weight its tensor, without memory where nothing is allocated, and its copy for products."""
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if isinstance(buffer, TensorBuffer):
            self._g.bind(node, buffer.tensor)
            if buffer.product is not None:
                self._g.bind_product(node, *buffer.product)
            return
        made = leaf_tensor(node.dtype, four(node))
        made.data = UNALLOCATED
        self._measured.append(made)
        self._g.bind(node, made)
        copy = self._backend.measured_copy(node.leaf.name)
        if copy is not None:
            self._measured.append(copy)
            self._g.bind_product(node, copy, self._backend.cpu)

    def _keep_outputs(self) -> None:
        """Memory of this plan's own for what must outlive other plans' runs: outputs and constants."""
        kept = holders(self._g, self._nodes)
        for tensor in kept:
            self._lib.ggml_set_output(tensor)
        tensors = [*kept, *(tensor for tensor, _ in self._g.constants)]
        sizes = [-(-self._lib.ggml_nbytes(tensor) // ALIGNMENT) * ALIGNMENT for tensor in tensors]
        total = sum(sizes)
        if total:
            holds = self._backend.params.alloc_memory
            self._backend.ledger.take(
                self._backend.graph_entry, total, lambda: self._allocate(total) if holds else None
            )
            self._own_size = total
        self._settle(tensors, sizes)
        if self._own != NULL:
            for tensor, data in self._g.constants:
                self._lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(data), 0, data.size)

    def _place_again(self) -> None:
        """The arena was made anew elsewhere, for a larger plan: move there, without building anything."""
        for tensor in self._floating:
            tensor.data = tensor.buffer = NULL
        self._backend.arena.place(self._graph, self._cplan.work_size)
        self._generation = self._backend.arena.generation

    def _allocate(self, total: int) -> None:
        self._own = host_memory(self._backend.library, total)

    def _settle(self, tensors: list[Ptr], sizes: list[int]) -> None:
        """Give tensors their places in this plan's own memory."""
        place = (
            NULL
            if self._own == NULL
            else ffi.cast("char *", self._lib.ggml_backend_buffer_get_base(self._own))
        )
        for tensor, size in zip(tensors, sizes, strict=True):
            if self._own == NULL:
                tensor.data = UNALLOCATED
            else:
                self._lib.ggml_backend_tensor_alloc(self._own, tensor, place)
                place += size

    def _check_guards(self) -> None:
        for node in self._nodes.nodes:
            if node.leaf is not None and isinstance(node.leaf.buffer, TensorBuffer):
                node.leaf.buffer.check_guards()
