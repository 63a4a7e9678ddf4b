"""Backends that are wrong in one way each, as the tests of the runner need them."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter

import numpy as np

from backbay import DeviceInfo, DType, Option, Precision, backends, ops
from backbay_conformance.machines.shadow import small_model

Reference = backends()["cpu_ref"].load()


def with_kernels(**replaced):
    """The reference with some kernels replaced, by the names of their ops."""
    return {**Reference.kernels, **{getattr(ops, name): kernel for name, kernel in replaced.items()}}


class Imprecise(Reference):
    kernels = with_kernels(tanh=lambda x: np.tanh(x) * 1.001)


class Exits(Reference):
    kernels = with_kernels(tanh=lambda x: os._exit(3))


class Hangs(Reference):
    kernels = with_kernels(tanh=lambda x: time.sleep(600))


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


class Laid(Reference):
    """Right on views of a leaf, wrong on a leaf."""

    def store(self, node, result, out):
        wrong = node.op is ops.tanh and node.operands[0].op is None
        super().store(node, result + 0.5 if wrong else result, out)


def root_of(x):
    raise ValueError("no root today")


class NoRoots(Reference):
    kernels = with_kernels(sqrt=root_of)


class Litters(Reference):
    """Ends the process with files of its own, and those of the suite, in the temporary folder."""

    kernels = with_kernels(tanh=lambda x: (tempfile.mkdtemp(), small_model(), os._exit(3)))


class Coarse(Reference):
    kernels = with_kernels(mul=lambda x, t2: Reference.kernels[ops.mul](x, t2) * 1.001)


def only(*names):
    return {getattr(ops, name): Reference.kernels[getattr(ops, name)] for name in names}


class Three(Reference):
    """Little, and all of it right."""

    kernels = only("add", "neg", "mulmat")


class WithoutCopies(Reference):
    """What lays operands out and reads views for the suite is missing."""

    kernels = {op: kernel for op, kernel in Reference.kernels.items() if op is not ops.contiguous}


class WithoutSoftmax(Reference):
    kernels = {op: kernel for op, kernel in Reference.kernels.items() if op is not ops.softmax}


class Raises(Reference):
    kernels = with_kernels(tanh=lambda x: 1 // 0)


class Without(Reference):
    """No kernel for one op that has no composite."""

    kernels = {op: kernel for op, kernel in Reference.kernels.items() if op is not ops.tanh}


class Liar(Reference):
    """Says that it runs what it cannot."""

    kernels = {op: kernel for op, kernel in Reference.kernels.items() if op is not ops.tanh}

    def supports(self, op, specs):
        from backbay.internals import KERNEL

        return KERNEL if op is ops.tanh else super().supports(op, specs)


class Modest(Reference):
    """Says that it cannot run what it has a kernel for."""

    def supports(self, op, specs):
        from backbay.plugin import unsupported

        return unsupported("it is too modest") if op is ops.tanh else super().supports(op, specs)


class Narrow(Reference):
    """Reads blocks, and cannot make any."""

    def compile(self, graph):
        from backbay import UnsupportedOpError

        for node in graph.nodes:
            if node.op is ops.cast and node.dtype.is_quantized:
                raise UnsupportedOpError(f"cast: {node}: it cannot quantize")
        return super().compile(graph)


class WritesBehind(Reference):
    """Notices a hit of a guard zone, and tells it in words of its own."""

    def run_plan(self, plan, cancel):
        from backbay import GuardZoneError

        super().run_plan(plan, cancel)
        if any(node.op is ops.tanh for node in plan.graph.nodes):
            raise GuardZoneError("something lies where nothing may")


def refuse(x):
    from backbay import UnsupportedOpError

    raise UnsupportedOpError("not today")


class RefusesLate(Reference):
    """Has no kernel for rms_norm, and refuses a part of its composite only when that runs."""

    kernels = {op: kernel for op, kernel in with_kernels(sqr=refuse).items() if op is not ops.rms_norm}


class WrongColumn(Reference):
    """The first column of a product is too large."""

    kernels = with_kernels(mulmat=lambda x, t2: raised_at_0(Reference.kernels[ops.mulmat](x, t2)))


def raised_at_0(y):
    y = y.copy()
    y[..., :1] += 1
    return y


class WrongShape(Reference):
    kernels = with_kernels(
        tanh=lambda x: np.tanh(x).reshape(-1)[:-1],
        rows=lambda x, ids: Reference.kernels[ops.rows](x, ids).reshape(-1)[:-1],
    )


class WrongRope(Reference):
    kernels = with_kernels(
        rope=lambda x, *args, **named: Reference.kernels[ops.rope](x, *args, **named) * 1.01
    )


class WrongEverywhere(Reference):
    """Every result of floats is twice as large as it should be."""

    def store(self, node, result, out):
        doubled = result if result.dtype.kind != "f" or node.op.moves else result * 2
        super().store(node, doubled, out)


def times_where(y, where):
    return y * 1.01 if where else y


class EightTokens(Reference):
    """A product that is wrong for exactly eight tokens."""

    kernels = with_kernels(
        mulmat=lambda x, t2: times_where(Reference.kernels[ops.mulmat](x, t2), t2.shape[-2] == 8)
    )


class WrongSetRows(Reference):
    kernels = with_kernels(set_rows=lambda x, src, ids: Reference.kernels[ops.set_rows](x, src * 1.01, ids))


class WrongRows(Reference):
    kernels = with_kernels(rows=lambda x, ids: np.roll(Reference.kernels[ops.rows](x, ids), 1, -1))


class WrongTogether(Reference):
    """An addition after a product is wrong, as a fused kernel may be."""

    def store(self, node, result, out):
        before = node.args[0].op if node.op is ops.add else None
        super().store(node, result * 1.1 if before is ops.mulmat else result, out)


class WrongAt384(Reference):
    """A product that is wrong for rows of exactly 384 elements."""

    kernels = with_kernels(
        mulmat=lambda x, t2: times_where(Reference.kernels[ops.mulmat](x, t2), t2.shape[-1] == 384)
    )


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
