"""The machine of a backend: contexts nested and interleaved, leaves rewritten, graphs that grow, closing in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import backbay
from backbay import BackbayError, BackendParams, ClosedError, DType, NotComputedError, ShapeError, Tensor

from ..fault import Fault, require
from ..numbers.comparison import must_equal
from ..numbers.encoding import Array
from ..suite.lab import GUARDED, Lab
from .machine import ChoiceSource, Machine, action
from .shadow import TRACED, WEIGHTS, WIDTH, ShadowContext, ShadowTensor, small_model, weight

PEAK = 4.0  # largest magnitude in a leaf
CONTEXTS, NODES = 3, 24


def has_context(machine: BackendMachine) -> bool:
    return bool(machine.open_contexts())


def has_leaf(machine: BackendMachine) -> bool:
    return any(leaf.is_leaf for ctx in machine.open_contexts() for leaf in ctx.nodes)


def has_nodes(machine: BackendMachine) -> bool:
    return any(len(ctx.nodes) < NODES and ctx.nodes for ctx in machine.open_contexts())


class BackendMachine(Machine):
    """Random actions on a backend; all data are small integers in f32, so each result is known to the bit."""

    def __init__(self, lab: Lab, choose: ChoiceSource) -> None:
        super().__init__(lab, choose)
        self.kind = type(lab.backend)
        self.options = lab.backend.params.options
        self.contexts: list[ShadowContext] = []
        self.count = 0
        self._open()

    def _open(self) -> None:
        params = BackendParams(num_threads=2, debug=GUARDED.debug, options=self.options)
        self.backend = backbay.open(small_model(), backend=self.kind, params=params)
        self.loaded, self.at_rest = False, self._cache_bytes()
        self.contexts.clear()
        self.tell("backend = open(small model)")

    def open_contexts(self) -> list[ShadowContext]:
        return [ctx for ctx in self.contexts if not ctx.closed]

    def close(self) -> None:
        for ctx in self.open_contexts():
            self._close(ctx)
        left = f"all contexts are closed, and {self._cache_bytes()} bytes of leaves are still booked"
        require(self._cache_bytes() == self.at_rest, left, check="life")
        self.backend.close()

    def _cache_bytes(self) -> int:
        return sum(entry.size for device in self.backend.memory().devices for entry in device.cache)

    # -- contexts and leaves -----------------------------------------------------------------------------

    @action(lambda machine: len(machine.open_contexts()) < CONTEXTS)
    def open_context(self, choose: ChoiceSource) -> None:
        ctx = ShadowContext(self.backend.new_context(), self._name("c"))
        self.contexts.append(ctx)
        self.tell(f"{ctx.name} = backend.new_context()")

    @action(has_context)
    def close_context(self, choose: ChoiceSource) -> None:
        self._close(self._context(choose))

    @action(has_context, weight=3)
    def make_leaf(self, choose: ChoiceSource) -> None:
        """A new leaf by from_floats, zeros or empty; an empty leaf may be read only after a write."""
        ctx = self._context(choose)
        if len(ctx.nodes) >= NODES:
            return
        shape = (WIDTH, 1 + choose.below(4))
        kind = ("from_floats", "zeros", "empty")[choose.below(3)]
        data = self._data(choose, shape) if kind == "from_floats" else np.zeros(shape[::-1])
        at = (ctx.ctx, ctx.ctx.input(), ctx.ctx.layer(0), ctx.ctx.layer(1))[choose.below(4)]
        made = at.from_floats(data) if kind == "from_floats" else getattr(at, kind)(DType.F32, *shape)
        leaf = ShadowTensor(made, ctx, self._name("leaf"), PEAK, data=data, written=kind != "empty")
        ctx.nodes.append(leaf)
        if leaf.written:  # a new leaf's data may or may not invalidate the context's results
            ctx.doubt()
        self.tell(f"{leaf.name} = {ctx.name}.{kind}{shape}")

    @action(has_leaf, weight=4)
    def rewrite_leaf(self, choose: ChoiceSource) -> None:
        """Write new data; results of the leaf's context that may depend on it can no longer be read."""
        leaf = self._leaf(choose)
        assert leaf.owner is not None
        assert leaf.data is not None
        leaf.data[...] = self._data(choose, leaf.shape)
        leaf.tensor.from_floats(leaf.data)
        if not leaf.written and leaf not in leaf.owner.needs():  # as a new leaf's data
            leaf.owner.doubt()
        leaf.written, leaf.owner.results = True, {}
        self._forget_aliases(leaf)
        self.tell(f"{leaf.name}.from_floats(...)")

    @action(has_leaf)
    def refuse_wrong_data(self, choose: ChoiceSource) -> None:
        leaf = self._leaf(choose)
        more = np.zeros(leaf.tensor.size + 1)
        self.expect(ShapeError, lambda: leaf.tensor.from_floats(more), "too many numbers")
        self._compare_leaf(leaf)

    @action(has_leaf)
    def read_leaf(self, choose: ChoiceSource) -> None:
        leaf = self._leaf(choose)
        self.tell(f"read {leaf.name}")
        self._compare_leaf(leaf)

    # -- weights -----------------------------------------------------------------------------------------

    @action(lambda machine: not machine.loaded)
    def load(self, choose: ChoiceSource) -> None:
        seen: list[float] = []
        self.backend.load(progress=seen.append)
        self.loaded = True
        self.tell("backend.load()")
        if seen != sorted(seen) or seen[:1] != [0.0] or seen[-1:] != [1.0]:
            raise Fault("life", f"progress must grow from 0.0 to 1.0, got {seen}")

    @action()
    def read_weight(self, choose: ChoiceSource) -> None:
        """A weight holds the file's data, and cannot be read before loading."""
        shadow = self.weight(choose)
        self.tell(f"read {shadow.name}")
        if not self.loaded:
            self.expect(NotComputedError, shadow.tensor.floats, "a weight is read before load")
        else:
            self._compare(shadow.tensor, shadow.data, shadow.name)

    # -- tracing -----------------------------------------------------------------------------------------

    @action(has_nodes, weight=8)
    def trace(self, choose: ChoiceSource) -> None:
        ctx = self._context(choose)
        if not ctx.nodes or len(ctx.nodes) >= NODES:
            return
        x = self._node(ctx, choose)
        name = list(TRACED)[choose.below(len(TRACED))]
        made = TRACED[name](self, ctx, x, choose)
        if made is not None:
            made.name = self._name("t")
            ctx.nodes.append(made)
            self.tell(f"{made.name} = {name}({', '.join(o.name for o in made.operands)}) in {ctx.name}")

    @action(has_nodes, weight=4)
    def trace_write(self, choose: ChoiceSource) -> None:
        """Trace a copy into a leaf or some of its rows; the leaf may belong to another context."""
        ctx, leaf = self._context(choose), self._leaf(choose) if has_leaf(self) else None
        if leaf is None or not ctx.nodes or len(ctx.nodes) >= NODES:
            return
        x = self._node(ctx, choose)
        rows = x.tensor.dim(1)
        if x.tensor.dim(0) != WIDTH or rows > leaf.tensor.dim(1) or x.tensor.rank != 2:
            return
        first = choose.below(leaf.tensor.dim(1) - rows + 1)
        view = leaf.tensor.slice(ctx.ctx, 1, first, first + rows)
        name, inside = f"{leaf.name}[{first}:{first + rows}]", slice(first, first + rows)
        place = ShadowTensor(view, ctx, name, leaf.peak, (leaf,), lambda a: a[inside], view=True)
        # Numbers that a graph writes and reads again must not grow from run to run.
        clamped = x.tensor.clamp(ctx.ctx, -PEAK, PEAK)
        bounded = ShadowTensor(clamped, ctx, "", PEAK, (x,), lambda a: np.clip(a, -PEAK, PEAK))
        written = bounded.tensor.copy(ctx.ctx, place.tensor)
        made = ShadowTensor(written, ctx, self._name("w"), PEAK, (bounded, place), lambda a, _: a, target=1)
        ctx.nodes.append(made)
        ctx.ctx.forward(made.tensor)
        ctx.root(made)
        written_by = f"{x.name}.clamp(-4, 4).copy({place.name})"
        self.tell(f"{made.name} = {written_by} in {ctx.name}; forward({made.name})")

    @action(has_nodes)
    def forward(self, choose: ChoiceSource) -> None:
        ctx = self._context(choose)
        if ctx.nodes:
            node = self._node(ctx, choose)
            ctx.ctx.forward(node.tensor)
            ctx.root(node)
            self.tell(f"{ctx.name}.forward({node.name})")

    # -- computing ---------------------------------------------------------------------------------------

    @action(has_nodes, weight=6)
    def compute(self, choose: ChoiceSource) -> None:
        """Compute with up to two outputs, and compare all readable results."""
        ctx = self._context(choose)
        count = min(choose.below(3), len(ctx.nodes))
        self._compute(ctx, [self._node(ctx, choose) for _ in range(count)])

    @action(lambda machine: any(ctx.latest for ctx in machine.open_contexts()), weight=6)
    def compute_again(self, choose: ChoiceSource) -> None:
        """Compute the same outputs from the leaves' current data: nothing may be traced, compiled or allocated."""
        found = [ctx for ctx in self.open_contexts() if ctx.latest]
        ctx = found[choose.below(len(found))]
        self._compute(ctx, ctx.latest)

    @action(has_context)
    def reserve(self, choose: ChoiceSource) -> None:
        ctx = self._context(choose)
        self.tell(f"{ctx.name}.reserve()")
        if self._closed_leaf(ctx):
            return
        ctx.ctx.reserve()
        ctx.doubt()  # results stay readable if nothing had to be compiled
        self._compiled(ctx)

    @action(has_nodes)
    def read_anything(self, choose: ChoiceSource) -> None:
        """Leaves and the latest compute's outputs can be read; other nodes raise, and never give stale data."""
        ctx = self._context(choose)
        if not ctx.nodes:
            return
        node = ctx.nodes[choose.below(len(ctx.nodes))]
        if node.is_leaf:
            self._compare_leaf(node)
        elif node in ctx.results:
            self._compare(node.tensor, ctx.results[node], node.name)
        elif node not in ctx.doubtful:
            self.expect(NotComputedError, node.tensor.floats, f"{node.name} was not computed")

    # -- the end -----------------------------------------------------------------------------------------

    @action(lambda machine: any(ctx.closed and ctx.nodes for ctx in machine.contexts))
    def use_what_is_closed(self, choose: ChoiceSource) -> None:
        closed = [ctx for ctx in self.contexts if ctx.closed and ctx.nodes]
        ctx = closed[choose.below(len(closed))]
        node = ctx.nodes[choose.below(len(ctx.nodes))]
        uses: list[tuple[str, Callable[[], Any]]] = [
            ("read", node.tensor.floats),
            ("trace", lambda: node.tensor.neg(ctx.ctx)),
            ("compute", lambda: ctx.ctx.compute(node.tensor)),
            ("new leaf", lambda: ctx.ctx.zeros(DType.F32, 1)),
            ("reserve", ctx.ctx.reserve),
        ]
        if node.is_leaf:
            uses.append(("write", lambda: node.tensor.from_floats(np.zeros(node.tensor.size))))
            if has_context(self):
                uses.append(("trace elsewhere", lambda: node.tensor.neg(self.open_contexts()[0].ctx)))
        name, use = uses[choose.below(len(uses))]
        self.expect(ClosedError, use, f"{name} with {node.name} of {ctx.name}, which is closed")

    @action(lambda machine: len(machine.contexts) > 3)
    def close_backend(self, choose: ChoiceSource) -> None:
        """Close the backend with all its contexts and tensors, then open another."""
        ctx = self.open_contexts()[0] if has_context(self) else None
        self.backend.close()
        self.tell("backend.close()")
        self.expect(ClosedError, self.backend.new_context, "a context of a closed backend")
        self.expect(ClosedError, lambda: self.backend.get("output.weight"), "a weight of a closed backend")
        if ctx is not None:
            self.expect(ClosedError, ctx.ctx.compute, "compute after the backend was closed")
            for node in ctx.nodes[:1]:
                self.expect(ClosedError, node.tensor.floats, "read after the backend was closed")
        self._open()

    # -- parts -------------------------------------------------------------------------------------------

    def _compute(self, ctx: ShadowContext, outputs: list[ShadowTensor]) -> None:
        ctx.latest = outputs
        self.tell(f"{ctx.name}.compute({', '.join(o.name for o in outputs)})")
        for output in outputs:
            ctx.root(output)
        blocked = self._why_not(ctx)
        ctx.results, ctx.doubtful = {}, set()
        if blocked is not None:
            ctx.stale = True
            kind, why = blocked
            self.expect(kind, lambda: ctx.ctx.compute(*[o.tensor for o in outputs]), why)
            return
        before = self.backend.counters
        ctx.ctx.compute(*[output.tensor for output in outputs])
        after = self.backend.counters
        traced = after.traced_nodes - before.traced_nodes
        allocated = after.bytes_allocated - before.bytes_allocated
        if traced or (allocated and not ctx.stale and not ctx.moved):  # it may be traced and allocated once
            told = f"a compute of the same outputs as before traced {traced} nodes and allocated {allocated} bytes"
            raise Fault("life", f"{told}; both must be 0")
        self._compiled(ctx)
        ctx.run()
        for node in ctx.values:
            if node.target is not None:
                self._forget_aliases(node.base, keep=ctx)
        ctx.results = {o: ctx.values[o] if ctx.is_known(o) else None for o in outputs}
        for other in self.open_contexts():  # results of other contexts are still valid
            for output, expected in other.results.items():
                self._compare_kept(other, ctx, output, expected)

    def _compare_kept(
        self, owner: ShadowContext, latest: ShadowContext, output: ShadowTensor, expected: Array | None
    ) -> None:
        """Compare an earlier result. After another context moved the memory it may raise, but it is never stale."""
        if output.base.owner is not None and output.base.owner.closed:
            return  # a view of a leaf whose context is closed
        try:
            self._compare(output.tensor, expected, output.name)
        except NotComputedError:
            if owner is latest or not owner.moved:
                raise

    def _compiled(self, ctx: ShadowContext) -> None:
        if ctx.stale:
            for other in self.contexts:
                other.moved = other is not ctx
        ctx.stale = ctx.moved = False

    def _why_not(self, ctx: ShadowContext) -> tuple[type[BackbayError], str] | None:
        """The error that a compute must raise in the current state, if any."""
        if not self.loaded and any(leaf.owner is None for leaf in ctx.needs()):
            return NotComputedError, "the weights are not loaded"
        if self._closed_leaf(ctx):
            return ClosedError, "a leaf of the graph belongs to a closed context"
        return None

    def _closed_leaf(self, ctx: ShadowContext) -> bool:
        return any(leaf.owner is not None and leaf.owner.closed for leaf in ctx.needs())

    def _forget_aliases(self, leaf: ShadowTensor, keep: ShadowContext | None = None) -> None:
        """Mark results that are views of a leaf as unknown: they may show its new data or its old data."""
        for ctx in self.contexts:
            for output in ctx.results if ctx is not keep else ():
                if output.base is leaf:
                    ctx.results[output] = None

    def _close(self, ctx: ShadowContext) -> None:
        ctx.ctx.close()
        ctx.closed, ctx.results = True, {}
        self.tell(f"{ctx.name}.close()")

    def _context(self, choose: ChoiceSource) -> ShadowContext:
        found = self.open_contexts()
        return found[choose.below(len(found))]

    def _leaf(self, choose: ChoiceSource) -> ShadowTensor:
        leaves = [node for ctx in self.open_contexts() for node in ctx.nodes if node.is_leaf]
        return leaves[choose.below(len(leaves))]

    def _node(self, ctx: ShadowContext, choose: ChoiceSource) -> ShadowTensor:
        """A node of a context; every second time one of the last three, so that chains grow."""
        recent = choose.below(2) * max(0, len(ctx.nodes) - 3)
        return ctx.nodes[recent + choose.below(len(ctx.nodes) - recent)]

    def weight(self, choose: ChoiceSource) -> ShadowTensor:
        name = list(WEIGHTS)[choose.below(len(WEIGHTS))]
        tensor = self.backend.get(name)
        if tensor is None or tensor.shape != WEIGHTS[name]:
            raise Fault("life", f"get({name!r}) gave {tensor!r}, the file holds {WEIGHTS[name]}")
        return ShadowTensor(tensor, None, name, 3.0, data=weight(name))

    def _data(self, choose: ChoiceSource, shape: tuple[int, ...]) -> Array:
        rng = np.random.default_rng(choose.below(1 << 16))
        return rng.integers(-4, 5, shape[::-1]).astype(np.float64)

    def _name(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def _compare_leaf(self, leaf: ShadowTensor) -> None:
        self._compare(leaf.tensor, leaf.data if leaf.written else None, leaf.name)

    def _compare(self, tensor: Tensor, expected: Array | None, name: str) -> None:
        got = tensor.numpy()
        if expected is not None:
            must_equal(got, expected, name, "life")
