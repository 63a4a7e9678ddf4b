"""A node of a graph as a call of its own: its op, and operands with the layouts that they have in the graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from backbay import CacheConfig, Context, Tensor
from backbay.internals import trace_op
from backbay.plugin import Node

from ..draw.data import Fill, Making
from ..draw.layout import Layout, LayoutStep, junk
from ..draw.operand import Operand, elements
from ..numbers.encoding import stored_shape
from ..numbers.rounding import Array
from ..suite.case import Call, call_of

Stored = Callable[[Node], Array]
"""The elements that a node with storage of its own holds, in the reversed shape."""


@dataclass(frozen=True)
class Held:
    """The data that an operand has in a graph."""

    data: Array

    def __call__(self, making: Making, operand: Operand) -> Array:
        return self.data


def call_with_data(node: Node, stored: Stored, cache: CacheConfig) -> Call | None:
    """The node on the data of its operands; None for an op without a case."""

    def operand(value: Node) -> Operand:
        root = source_of(value)
        held = stored(root)
        made = laid_out(value, Held(elements(held, value).copy()), held)
        made.hold(made.fill.data)  # type: ignore[attr-defined]
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

    assert node.op is not None
    return call_of(node.op, tuple(map(argument, node.args)), cache)


def laid_out(node: Node, fill: Fill, held: Array | None = None) -> Operand:
    """An operand with a node's layout; `held` are the elements around it, junk if not given."""
    views = views_of(node)
    steps = (_views_step(node, views, held),) if views else ()
    return Operand(node.dtype, node.shape, fill, Layout(node.dtype, node.shape, steps), 0)


def source_of(node: Node) -> Node:
    """The node with storage of its own that a view or alias reads."""
    while node.is_view:
        node = _before(node)
    return node


def views_of(node: Node) -> list[Node]:
    """The views between a node and its storage, the outermost last; aliases of written storage are left out."""
    found = []
    while node.is_view:
        if node.op is not None and node.op.writes is None:
            found.append(node)
        node = _before(node)
    return found[::-1]


def _before(node: Node) -> Node:
    assert node.op is not None
    previous: Node = node.args[node.op.writes or 0]
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
            assert view.op is not None
            x = trace_op(ctx, view.op, (x, *view.args[1:]))
        return x

    def merged(raw: Array) -> Array:
        return np.array(elements(embed(raw), node))

    return LayoutStep(
        " > ".join(f"{view.op.name}{_attributes(view)}" for view in views if view.op is not None),
        source.shape,
        node.shape,
        embed,
        trace,
        ".".join(f"{view.op.name}({_written(view)})" for view in views if view.op is not None),
        merged,
    )


def _attributes(view: Node) -> str:
    return f"({','.join(map(str, view.args[1:]))})".replace(" ", "")


def _written(view: Node) -> str:
    """The arguments of a view in a program."""
    assert view.op is not None
    words = ["ctx"]
    for parameter, value in zip(view.op.parameters[1:], view.args[1:], strict=True):
        words += map(repr, value) if parameter.variadic else [repr(value)]
    return ", ".join(words)
