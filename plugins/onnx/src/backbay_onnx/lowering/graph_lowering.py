"""A whole graph as one ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from onnx import GraphProto, TensorProto

from backbay import Graph, Op
from backbay.internals import Term

from ..session.native import DOMAIN
from .element_types import onnx_type
from .feeds import Feeds
from .kernel_view import Lowering, Settings
from .lowered_model import Lowered
from .state_outputs import finish_states


def lower(graph: Graph, kernels: Mapping[Op[Any, Any], Callable[..., str]], settings: Settings) -> Lowered:
    """Lower a graph, node by node, in its order."""
    b = Lowering(graph, kernels, settings)
    owners: dict[str, int] = {}
    for node in graph.nodes:
        if node.op is not None and not node.op.view:
            begin = len(b.nodes)
            b.lower_node(node)
            owners |= {made.name: node.index for made in b.nodes[begin:]}
    results = _results(b)
    states, rows = finish_states(b)
    model = b.build()
    name_following_weights(model.graph)
    return Lowered(
        model,
        tuple(b.leaves.values()),
        Feeds({name: feed for feed, name in b.feeds.items()}),
        results,
        states,
        rows,
        tuple((file, index, part) for (index, part), file in b.parts.items()),
        tuple(b.resident_parts),
        _checks(b),
        tuple(b.distinct),
        tuple(b.baked.items()),
        tuple(b.packed.items()),
        b.symbols.guards,
        frozenset(b.copied),
        owners,
    )


def name_following_weights(graph: GraphProto) -> None:
    """Tell native products which weights are read next, so that they fetch some meanwhile."""
    made = {name for node in graph.node for name in node.output}
    products = [node for node in graph.node if node.domain == DOMAIN and node.op_type == "Products"]
    for product, following in pairwise(products):
        name = following.input[0]
        # The rows of an expert that is not the first begin elsewhere.
        begins = all(given.i == 0 for given in following.attribute if given.name == "first")
        if begins and name not in made and name != product.input[0]:
            product.input.append(name)


def _results(b: Lowering) -> tuple[tuple[str, int], ...]:
    """Outputs that no leaf holds; leaves are read where they lie."""
    found: dict[int, str] = {}
    for output in b.graph.outputs:
        node = output if b.settings.exported else output.storage
        if node.op is not None and node.op.writes is None and node.index not in found:
            name = found[node.index] = b.named(node, f"result{node.index}")
            raw = node.dtype.is_quantized
            type = TensorProto.UINT8 if raw else onnx_type(node.dtype)
            b.end(name, b.value(node, "raw" if raw else "stored"), type, node.rank)
    return tuple((name, index) for index, name in found.items())


def _checks(b: Lowering) -> tuple[tuple[int, Term, Term], ...]:
    """Each write into a window must fall into it."""
    cut = [state.window for state in b.states.values() if state.window is not None]
    found = [(ids.index, window.first.term, window.rows.term) for window in cut for ids in window.ids]
    return tuple(dict.fromkeys(found))
