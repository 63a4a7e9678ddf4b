"""Backends that are wrong in one way each, as the tests of the runner need them."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter

import numpy as np

from backbay import (
    BackbayError,
    BackendUnavailableError,
    CancelledError,
    DeviceInfo,
    DType,
    GuardZoneError,
    Option,
    Precision,
    RefusalError,
    UnsupportedOpError,
    ops,
)
from backbay.plugin import GRAPH, unsupported
from backbay_conformance.machines.shadow import small_model
from backbay_selftest import reference
from backbay_selftest.correct import derived, half_precision_activations, lacking
from backbay_selftest.fault import named, planted
from backbay_selftest.faults.backends.claims import claiming

Reference = reference()

Imprecise = planted(ops.tanh)(lambda call: call.right() * 1.001)
Exits = planted(ops.tanh)(lambda call: os._exit(3))
Hangs = planted(ops.tanh)(lambda call: time.sleep(600))
Raises = planted(ops.tanh)(lambda call: 1 // 0)
Coarse = planted(ops.mul)(lambda call: call.right() * 1.001)
Unsigned = planted(ops.sqrt)(lambda call: np.abs(call.right()))
WrongRope = planted(ops.rope)(lambda call: call.right() * 1.01)
WrongSetRows = planted(ops.set_rows)(lambda call: call.right(src=call.src * 1.01))
WrongRows = planted(ops.rows)(lambda call: np.roll(call.right(), 1, -1))
WrongShape = planted(ops.tanh, ops.rows)(lambda call: call.right().reshape(-1)[:-1])


@planted(ops.exp)
def Peaked(call):
    """Off by up to 30 last places, the more the nearer an argument is to 50.03."""
    with np.errstate(over="ignore", invalid="ignore"):
        places = 30 / (1 + (np.abs(call.x - 50.03) * 1e3) ** 0.25)
        return call.right() * (1 + places * 2.0**-24)


Peaked.precision = lambda self, op, specs: Precision(DType.F32, DType.F32)


class Plain(Reference):
    """Right, under another name."""


Three = lacking(Reference, lambda op: op not in named("add", "neg", "mulmat"))
"""Little, and all of it right."""
WithoutCopies = lacking(Reference, lambda op: op is ops.contiguous)
"""What lays operands out and reads views for the suite is missing."""
WithoutSoftmax = lacking(Reference, lambda op: op is ops.softmax)
Without = lacking(Reference, lambda op: op is ops.tanh)
"""No kernel for one op that has no composite."""
Halves = half_precision_activations(Reference)
Liar = claiming(Reference, ops.tanh)
"""Says that it runs what it cannot."""


class Shut(Reference):
    def start(self):
        raise BackendUnavailableError("no device")


class StartsSlowly(Reference):
    def start(self):
        logging.getLogger("backbay.slow").warning("trying the device, once")
        time.sleep(5)
        super().start()


class TriesAtFirst(StartsSlowly):
    """Says how long it may take."""

    @classmethod
    def trial_seconds(cls):
        return 60.0


class Hoards(Reference):
    """Each compiled graph keeps memory that nobody has booked."""

    def compile(self, graph):
        plan = super().compile(graph)
        plan.hoard = np.ones(48 << 20, np.uint8)
        return plan


class BooksCancelled(Reference):
    """A compute that was cancelled stays booked."""

    def run_plan(self, plan, cancel):
        try:
            super().run_plan(plan, cancel)
        except CancelledError:
            self.ledger.take(GRAPH, 8, lambda: None)
            raise


class Laid(Reference):
    """Right on views of a leaf, wrong on a leaf."""

    def store(self, node, result, out):
        wrong = node.op is ops.tanh and node.operands[0].op is None
        super().store(node, result + 0.5 if wrong else result, out)


class OneScale(Reference):
    """Wrong where two calls of scale in one graph have different factors."""

    def run_plan(self, plan, cancel):
        self.factors = set()
        super().run_plan(plan, cancel)

    def store(self, node, result, out):
        if node.op is ops.scale:
            self.factors.add(node.args[1])
            result = result + 1 if len(self.factors) > 1 else result
        super().store(node, result, out)


def root_of(x):
    raise ValueError("no root today")


class NoRoots(Reference):
    kernels = {**Reference.kernels, ops.sqrt: root_of}


@planted(ops.tanh)
def Litters(call):
    """Ends the process with files of its own, and those of the suite, in the temporary folder."""
    return tempfile.mkdtemp(), small_model(), os._exit(3)


@planted("supports")
def Modest(call):
    """Says that it cannot run what it has a kernel for."""
    return unsupported("it is too modest") if call.op is ops.tanh else call.right()


class Narrow(Reference):
    """Reads blocks, and cannot make any."""

    def compile(self, graph):
        for node in graph.nodes:
            if node.op is ops.cast and node.dtype.is_quantized:
                raise UnsupportedOpError(f"cast: {node}: it cannot quantize")
        return super().compile(graph)


class WritesBehind(Reference):
    """Notices a hit of a guard zone, and tells it in words of its own."""

    def run_plan(self, plan, cancel):
        super().run_plan(plan, cancel)
        if any(node.op is ops.tanh for node in plan.graph.nodes):
            raise GuardZoneError("something lies where nothing may")


def refuse(x):
    raise UnsupportedOpError("not today")


RefusesLate = derived(lacking(Reference, lambda op: op is ops.rms_norm), kernels={ops.sqr: refuse})
"""Has no kernel for rms_norm, and refuses a part of its composite only when that runs."""


@planted(ops.mulmat)
def WrongColumn(call):
    """The first column of a product is too large."""
    y = call.right()
    y[..., :1] += 1
    return y


class WrongEverywhere(Reference):
    """Every result of floats is twice as large as it should be."""

    def store(self, node, result, out):
        doubled = result if result.dtype.kind != "f" or node.op.moves else result * 2
        super().store(node, doubled, out)


@planted(ops.mulmat)
def EightTokens(call):
    """A product that is wrong for exactly eight tokens."""
    return call.right() * (1.01 if call.x.shape[-2] == 8 else 1)


class Invariant(Reference):
    """Promises that no row depends on others, or on the number of threads."""

    def batch_invariant(self, op, specs):
        return op in (ops.mulmat, ops.rms_norm)

    thread_invariant = batch_invariant

    def varies(self, node):
        return False

    def store(self, node, result, out):
        beside = np.nextafter(result.astype(np.float32), np.inf) if self.varies(node) else result
        super().store(node, beside, out)


class VariesWithRows(Invariant):
    """The products of eight rows and more are rounded otherwise."""

    def varies(self, node):
        return node.op is ops.mulmat and node.dim(1) >= 8


class VariesWithThreads(Invariant):
    def varies(self, node):
        return node.op is ops.rms_norm and self.params.num_threads != 2


class Stale(Reference):
    """A plan that has run 100 times gives the last result again."""

    def run_plan(self, plan, cancel):
        plan.runs = getattr(plan, "runs", 0) + 1
        if plan.runs <= 100:
            super().run_plan(plan, cancel)


class DropsARun(Reference):
    """After a graph was refused, the next run of any other is dropped."""

    refused = False

    def compile(self, graph):
        try:
            return super().compile(graph)
        except BackbayError:
            self.refused = True
            raise

    def run_plan(self, plan, cancel):
        if not self.refused:
            super().run_plan(plan, cancel)
        self.refused = False


class BindsOnce(Reference):
    """Two operands that are views of one leaf are taken for one."""

    def read_operand(self, reader, operand, arrays):
        first = reader.args[0]
        same = reader.op is ops.concat and operand.storage is first.storage and operand.shape == first.shape
        return super().read_operand(reader, first if same else operand, arrays)


class RefusesWithoutAName(Reference):
    """Cannot make blocks, and does not say of which op or type."""

    def compile(self, graph):
        if any(node.op is not None and node.dtype.is_quantized for node in graph.nodes):
            raise UnsupportedOpError("it cannot")
        return super().compile(graph)


class Asserts(Reference):
    """A value of an option that it does not know is an assertion that fails."""

    options = {**Reference.options, "speed": Option("fast", lambda text: text, "fast or exact")}

    def start(self):
        assert self.option_values["speed"] in ("fast", "exact")
        super().start()


class WrongTogether(Reference):
    """An addition after a product is wrong, as a fused kernel may be."""

    def store(self, node, result, out):
        before = node.args[0].op if node.op is ops.add else None
        super().store(node, result * 1.1 if before is ops.mulmat else result, out)


@planted(ops.mulmat)
def WrongAt384(call):
    """A product that is wrong for rows of exactly 384 elements."""
    return call.right() * (1.01 if call.x.shape[-1] == 384 else 1)


class Counting(Reference):
    """Right, and counts the calls of its kernels by op."""

    calls = Counter()

    def run_node(self, node, arrays):
        self.calls[node.op.name] += 1
        super().run_node(node, arrays)


class TwoDevices(Reference):
    """A second device, whose products are coarse, as it declares; and an option."""

    options = {**Reference.options, "speed": Option(1, int, "how fast")}

    def devices(self):
        return [*super().devices(), DeviceInfo("Far:0", "a device", is_gpu=True)]

    def precision_on(self, device, op, specs):
        own = super().precision_on(device, op, specs)
        return Precision(DType.F16, own.accumulate) if device == "Far:0" and op is ops.mul else own


class OnlyFar(TwoDevices):
    """Wrong where the second device is used with one value of the option."""

    def store(self, node, result, out):
        wrong = self.params.gpu_layers and self.option_values["speed"] == 2 and node.op is ops.tanh
        super().store(node, result * 1.001 if wrong else result, out)


class Refusing(Reference):
    """Refuses some nodes when it compiles; by default tanh of more than two dimensions. All else is right."""

    def refuses(self, node):
        return node.op is ops.tanh and node.rank > 2

    def compile(self, graph):
        for node in graph.nodes:
            if node.op is not None and not node.op.view and self.refuses(node):
                raise RefusalError(f"no {node.op.name} of this shape", node)
        return super().compile(graph)


class RefusesAll(Refusing):
    def refuses(self, node):
        return True


class RefusesTanh(Refusing):
    def refuses(self, node):
        return node.op is ops.tanh


class Composes(Refusing):
    """Lets core run the composite in the place of silu of two dimensions."""

    composes_refusals = True

    def refuses(self, node):
        return node.op is ops.silu and node.rank == 2


class ComposesWrongly(Composes):
    """The op that silu's composite needs is wrong."""

    kernels = {**Reference.kernels, ops.sigmoid: lambda x: x}


class RefusesLater(Reference):
    """Refuses to run again what has run."""

    def compile(self, graph):
        plan = super().compile(graph)
        plan.ran = False
        return plan

    def run_plan(self, plan, cancel):
        if plan.ran and any(node.op is ops.tanh for node in plan.graph.nodes):
            raise RefusalError("no tanh today")
        super().run_plan(plan, cancel)
        plan.ran = True


class WritesAndRefuses(Reference):
    """Refuses in the midst of a run, when a leaf has changed."""

    def run_node(self, node, arrays):
        if node.op is ops.tanh and node.operands[0].op is None:
            arrays[node.operands[0].index][...] = 1
            raise RefusalError("no tanh of a leaf", node)
        super().run_node(node, arrays)
