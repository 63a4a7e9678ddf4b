"""From ops in order to ggml's graph of them."""

from __future__ import annotations

from collections.abc import Sequence

from backbay import Graph, Node

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from ..ops.builder import Builder, owner


def link(library: Library, order: Sequence[Ptr], leaves: int) -> tuple[Ptr, Ptr, int]:
    """A pool, in it the graph of ops in this order, which have up to so many leaves, and the size it was made for."""
    lib, size = library.lib, 2 * len(order) + leaves + 64
    memory = lib.ggml_graph_overhead_custom(size, False) + 1024
    pool = lib.ggml_init(ffi.new("ggml_init_params *", (memory, NULL, True))[0])
    if pool == NULL:
        raise MemoryError("no memory for a graph's description")
    graph = lib.ggml_new_graph_custom(pool, size, False)
    for tensor in order:
        lib.ggml_build_forward_expand(graph, tensor)
    return pool, graph, size


def floating(library: Library, graph: Ptr, g: Builder) -> list[Ptr]:
    """The tensors that get their places in memory that plans share, and the views of them."""
    count = range(library.lib.ggml_graph_n_nodes(graph))
    tensors = [*(library.lib.ggml_graph_node(graph, n) for n in count), *g.blank]
    return [tensor for tensor in tensors if tensor.data == NULL]


def holders(g: Builder, nodes: Graph) -> list[Ptr]:
    """The tensors that hold the outputs, each once, unless a leaf does, or there is nothing to hold."""
    found = {
        int(ffi.cast("uintptr_t", tensor)): tensor
        for tensor in (holder(g, node) for node in nodes.outputs)
        if tensor is not None
    }
    return list(found.values())


def holder(g: Builder, node: Node) -> Ptr | None:
    """The tensor that holds a node's data, unless a leaf does, or there is nothing to hold."""
    if node.storage.leaf is not None or node.storage.size == 0:
        return None
    root = g.root(node)
    return owner(root)
