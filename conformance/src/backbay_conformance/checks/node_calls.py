"""Nodes of graphs as calls of their own: with the data of a graph, or, for the calls that a model makes, with drawn data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from backbay import BackbayError, CacheConfig, Context, Op, Spec, Tensor, ops
from backbay.internals import trace_op
from backbay.plugin import Node

from ..draw.data import ComputedNumbers, DistinctIds, Fill, FillContext, Integers, Numbers
from ..draw.delta_rule_data import FILLS
from ..draw.draw import Draw
from ..draw.layout import Layout, LayoutStep, junk
from ..draw.operand import Operand, elements
from ..numbers.encoding import Array, stored_shape
from ..suite.case import Call, call_of
from ..suite.lab import Lab

Stored = Callable[[Node], Array]
"""The elements that a node with storage of its own holds, in the reversed shape."""


def call_with_data(node: Node, stored: Stored, cache: CacheConfig) -> Call | None:
    """The node on the data of its operands; None for an op without a case."""

    def operand(value: Node) -> Operand:
        held = stored(source_of(value))
        data = elements(held, value).copy()
        made = laid_out(value, lambda making, operand: data, held)
        made.hold(data)
        return made

    return node_call(node, operand, cache)


def node_call(node: Node, operand: Callable[[Node], Operand], cache: CacheConfig) -> Call | None:
    """The node as a call, of one operand for each node that it reads or writes."""
    made: dict[int, Operand] = {}

    def argument(value: Any) -> Any:
        if isinstance(value, Node):
            if value.index not in made:
                made[value.index] = operand(value)
            return made[value.index]
        return tuple(map(argument, value)) if type(value) is tuple else value

    return call_of(op_of(node), tuple(map(argument, node.args)), cache)


def laid_out(node: Node, fill: Fill, held: Array | None = None) -> Operand:
    """An operand with a node's layout; `held` are the elements around it, junk if not given."""
    views = views_of(node)
    steps = (_views_step(node, views, held),) if views else ()
    return Operand(node.dtype, node.shape, fill, Layout(steps), 0)


def source_of(node: Node) -> Node:
    """The node with storage of its own that a view or alias reads."""
    while node.is_view:
        node = _before(node)
    return node


def views_of(node: Node) -> list[Node]:
    """The views between a node and its storage, the outermost last; aliases of written storage are left out."""
    found = []
    while node.is_view:
        if op_of(node).writes is None:
            found.append(node)
        node = _before(node)
    return found[::-1]


def op_of(node: Node) -> Op[Any, Any]:
    """The op of a node that is no leaf."""
    assert node.op is not None
    return node.op


def _before(node: Node) -> Node:
    previous: Node = node.args[op_of(node).writes or 0]
    return previous


def _views_step(node: Node, views: list[Node], held: Array | None) -> LayoutStep:
    source = source_of(node)

    def embed(raw: Array) -> Array:
        shape = stored_shape(source.dtype, source.shape)
        whole = junk(source.dtype, raw, shape) if held is None else held.reshape(shape).copy()
        elements(whole, node)[...] = raw
        return whole

    def trace(ctx: Context, x: Tensor) -> Tensor:
        for view in views:
            x = trace_op(ctx, op_of(view), (x, *view.args[1:]))
        return x

    def merged(raw: Array) -> Array:
        return np.array(elements(embed(raw), node))

    attributes = [",".join(map(str, view.args[1:])).replace(" ", "") for view in views]
    name = " > ".join(f"{op_of(view).name}({text})" for view, text in zip(views, attributes, strict=True))
    code = ".".join(f"{op_of(view).name}({_written(view)})" for view in views)
    return LayoutStep(name, source.shape, node.shape, embed, trace, code, merged)


def _written(view: Node) -> str:
    words = ["ctx"]
    for parameter, value in zip(op_of(view).parameters[1:], view.args[1:], strict=True):
        words += map(repr, value) if parameter.variadic else [repr(value)]
    return ", ".join(words)


POSITIONS = 4096  # rotary positions are drawn below it


def model_call(lab: Lab, node: Node, draw: Draw) -> Call:
    """The node as a call with drawn data."""
    positions = {value.index: i for i, value in enumerate(node.args) if isinstance(value, Node)}

    def operand(value: Node) -> Operand:
        made = laid_out(value, _fill(node, positions.get(value.index, 0), value))
        made.seed = draw.below(1 << 16)
        return made

    call = node_call(node, operand, lab.backend.cache_config())
    if call is None:
        raise BackbayError(f"the suite has no case of {op_of(node).name}")
    return call


def _fill(node: Node, position: int, value: Node) -> Fill:
    """Data that an operand may have: ids in range, masks with a visible position, decays below 0, floats near 1."""
    op = op_of(node)
    if position == op.ids:
        among, dimension = op.among
        bound = node.args[among].dim(dimension)
        return DistinctIds(bound) if op is ops.set_rows and value.dim(0) <= bound else Integers(0, bound)
    if value.dtype.is_integer:
        return Integers(0, POSITIONS)
    name = op.parameters[position].name
    if name == "mask":
        return ComputedNumbers(_masked)
    if op is ops.ssm_scan and name == "A":
        return ComputedNumbers(_decays)
    if op is ops.delta_rule and name in FILLS:
        return FILLS[name]
    return Numbers(low=-8, high=8)


def _masked(making: FillContext, operand: Operand) -> Array:
    history = operand.shape[0]
    mask = np.where(making.rng.random((prod(operand.shape[1:]), history)) < 0.3, -np.inf, 0.0)
    mask[:, making.rng.integers(history)] = 0.0
    return mask


def _decays(making: FillContext, operand: Operand) -> Array:
    return -np.exp(making.rng.uniform(-3, 1, prod(operand.shape)))


# -- kinds of calls --------------------------------------------------------------------------------------

EDGES = ((0, "0"), (1, "1"), (32, "<=32"), (256, "<=256"), (4096, "<=4096"))
"""The upper ends of size classes, and their names."""


def kind_of(op: Op[Any, Any], specs: Sequence[Spec | None]) -> str:
    """The kind of a call: its op, and the dtype, layout and size class of each operand."""
    return f"{op.name} " + ", ".join("none" if spec is None else _class(spec) for spec in _flat(specs))


def _flat(specs: Sequence[Any]) -> list[Spec | None]:
    return [one for spec in specs for one in (spec if type(spec) is tuple else (spec,))]


def _class(spec: Spec) -> str:
    sizes = [next((name for most, name in EDGES if extent <= most), ">4096") for extent in spec.shape]
    extents = "x".join(sizes)
    if spec.strides is None:
        return f"{spec.dtype}[{extents}]"
    strides = [spec.stride(n) for n in range(len(spec.shape)) if spec.shape[n] > 1]
    return f"{spec.dtype}[{extents}] {'strided' if strides == sorted(strides) else 'permuted'}"
