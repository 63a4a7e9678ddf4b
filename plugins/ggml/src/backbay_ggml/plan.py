"""A graph that is built once and run again and again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import numpy as np

from backbay import BackbayError, Graph, Node, Plan
from backbay.encoding import Bytes, gather
from backbay.plan import Cancel, check_cancel

from .abi import NULL, Ptr, ffi
from .buffers import ALIGNMENT, UNALLOCATED, LeafBuffer, WeightBuffer, host_memory
from .builder import Builder, four, leaf_tensor
from .lowering import lower

if TYPE_CHECKING:
    from .backend import Ggml

ABORTED = 1  # of enum ggml_status, 0 is success
POLL_SECONDS = 0.002  # how soon a cancelled compute notices


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
        self._g = Builder(backend.library, backend.library.cpu, flash=backend.flash)
        try:
            lower(self._g, graph, self._leaf)
            self._graph = self._link()
            self._is_empty = self._lib.ggml_graph_n_nodes(self._graph) == 0
            self._keep_outputs()
            self._cplan = ffi.new(
                "ggml_cplan *", self._lib.ggml_graph_plan(self._graph, backend.threads, NULL)
            )
            self._floating = self._list_floating()
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
            with self._watching(cancel):
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
        skipped = (self._backend.library.view_op, self._backend.library.none_op)
        return [f"CPU:0 {self._g.describe(tensor)}" for tensor in self._g.order if tensor.op not in skipped]

    # -- building ----------------------------------------------------------------------------------------

    def _leaf(self, node: Node) -> tuple[Ptr, Ptr | None]:
        """The tensor of a leaf or weight, without memory where nothing is allocated, and its copy for products."""
        assert node.leaf is not None
        buffer = node.leaf.buffer
        if isinstance(buffer, WeightBuffer):
            return buffer.tensor, buffer.product
        if isinstance(buffer, LeafBuffer):
            return buffer.tensor, None
        made = leaf_tensor(node.dtype, four(node))
        made.data = UNALLOCATED
        self._measured.append(made)
        return made, None

    def _link(self) -> Ptr:
        """ggml's graph: the ops in the order in which they were made."""
        order = self._g.order
        size = 2 * len(order) + len(self._nodes.nodes) + len(self._g.constants) + 64
        memory = self._lib.ggml_graph_overhead_custom(size, False) + 1024
        self._graph_pool = self._lib.ggml_init(ffi.new("ggml_init_params *", (memory, NULL, True))[0])
        if self._graph_pool == NULL:
            raise MemoryError("no memory for a graph's description")
        graph = self._lib.ggml_new_graph_custom(self._graph_pool, size, False)
        for tensor in order:
            self._lib.ggml_build_forward_expand(graph, tensor)
        return graph

    def _keep_outputs(self) -> None:
        """Memory of this plan's own for what must outlive other plans' runs: outputs and constants."""
        kept = {
            int(ffi.cast("uintptr_t", t)): t for t in map(self._holder, self._nodes.outputs) if t is not None
        }
        for tensor in kept.values():
            self._lib.ggml_set_output(tensor)
        tensors = [*kept.values(), *(tensor for tensor, _ in self._g.constants)]
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

    def _list_floating(self) -> list[Ptr]:
        """The tensors that get their places in the arena, and the views of them."""
        count = range(self._lib.ggml_graph_n_nodes(self._graph))
        tensors = [*(self._lib.ggml_graph_node(self._graph, n) for n in count), *self._g.blank]
        return [tensor for tensor in tensors if tensor.data == NULL]

    def _place_again(self) -> None:
        """The arena was made anew elsewhere, for a larger plan: move there, without building anything."""
        for tensor in self._floating:
            tensor.data = tensor.buffer = NULL
        self._backend.arena.place(self._graph, self._cplan.work_size)
        self._generation = self._backend.arena.generation

    def _holder(self, node: Node) -> Ptr | None:
        """The tensor that holds an output's data, unless a leaf does, or nothing is there to hold."""
        if node.storage.leaf is not None or node.storage.size == 0:
            return None
        root = self._g.root(node)
        return root if root.view_src == NULL else root.view_src

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

    # -- running -----------------------------------------------------------------------------------------

    @contextmanager
    def _watching(self, cancel: Cancel) -> Iterator[None]:
        """While this lasts, a set `cancel` makes ggml's threads stop at the next node."""
        flag, done = self._backend.abort_flag, threading.Event()

        def watch() -> None:
            while not done.wait(POLL_SECONDS):
                if cancel.is_set():
                    flag[0] = b"\1"
                    return

        watcher = threading.Thread(target=watch, name="backbay-ggml-cancel", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
            flag[0] = b"\0"

    def _check_guards(self) -> None:
        for node in self._nodes.nodes:
            if node.leaf is not None and isinstance(node.leaf.buffer, LeafBuffer):
                node.leaf.buffer.check_guards()
