"""Backends that are wrong in one way each, as the tests of the runner need them."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter

import numpy as np

from backbay import (
    BackendUnavailableError,
    CancelledError,
    DeviceInfo,
    DType,
    GuardZoneError,
    Option,
    Precision,
    UnsupportedOpError,
    ops,
)
from backbay.plugin import GRAPH, unsupported
from backbay_conformance.machines.shadow import small_model
from backbay_selftest import reference
from backbay_selftest.correct import derived, half_precision_activations, lacking
from backbay_selftest.faults import named, planted
from backbay_selftest.planted.backends.claims import claiming

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
