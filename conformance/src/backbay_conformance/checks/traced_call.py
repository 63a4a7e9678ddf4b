"""A call traced on a backend: its leaves, its results, and the precision that the backend declares for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from backbay import Backend, Context, DType, Level, Op, Precision, RefusalError, Spec, Tensor, ops
from backbay.internals import call_text, composite_kernels, trace_op

from ..draw.data import Mode
from ..draw.layout import Layout, runs
from ..draw.operand import Operand
from ..fault import Fault
from ..numbers.encoding import BLOCK_STEP, SIGNIFICAND, Array, from_bytes, unit
from ..suite.case import Call


def declared_precision(
    backend: Backend, op: Op[Any, Any], args: Sequence[Any], *, composed: bool
) -> Precision:
    """The precision of an op on complete, prepared arguments; for a composite, the coarsest of its kernels."""
    own = precision_of(backend, op, [args[i] for i in op.operands])
    if not composed or op.composite is None:
        return own
    kernels = composite_kernels(op, args, backend.supports)
    return coarsest([own, *[precision_of(backend, part, specs) for part, specs in kernels]])


def precision_of(backend: Backend, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
    """The precision of an op where the params place it, on the CPU or on GPUs; without placement, the backend's own."""
    placed = backend.params.gpu_layers
    if placed is None:
        return backend.precision(op, specs)
    used = [backend.ledger.devices[0][0], *(gpu.id for gpu in placed)]
    return coarsest([backend.precision_on(device, op, specs) for device in used])


def coarsest(precisions: Sequence[Precision]) -> Precision:
    activation = max((p.activation for p in precisions), key=_coarseness)
    flushes = any(p.flushes_subnormals for p in precisions)
    accumulate = max((p.accumulate for p in precisions), key=unit)
    weight = max((p.weight for p in precisions), key=unit)
    return Precision(activation, accumulate, flushes, weight)


def told(precision: Precision) -> str:
    """A precision in reports: the types of activations and of sums, that of weights if it is not f32, and whether subnormal
    operands are flushed.
    """
    weights = "" if precision.weight is DType.F32 else f" (weights {precision.weight})"
    flushed = " (subnormals as zeros)" if precision.flushes_subnormals else ""
    return f"{precision.activation}/{precision.accumulate}{weights}{flushed}"


def _coarseness(dtype: DType) -> float:
    return unit(dtype) if dtype in SIGNIFICAND else BLOCK_STEP.get(dtype, 1.0)


def weight(backend: Backend, name: str, spec: Spec) -> Tensor:
    found = backend.get(name)
    if found is None or (found.dtype, found.shape) != (spec.dtype, spec.shape):
        raise Fault("weights", f"get({name!r}) gave {found!r}, the file holds {spec}")
    return found


class TracedCall:
    """A call traced in a context of its own: its leaves and its result tensors.

    `weights` names the operands that are weights of the backend's model; the others are leaves.
    """

    def __init__(
        self,
        backend: Backend,
        call: Call,
        *,
        composed: bool = False,
        weights: Mapping[Operand, str] = MappingProxyType({}),
    ) -> None:
        self.backend, self.call, self.composed, self.weights = backend, call, composed, weights
        self.ctx: Context = backend.new_context()
        self.leaves: dict[Operand, Tensor] = {}
        try:
            self._trace(composed)
        except BaseException:
            self.ctx.close()
            raise

    def _trace(self, composed: bool) -> None:
        call, ctx = self.call, self.ctx
        self.tensors: dict[Operand, Tensor] = {}
        for operand in call.operands():
            if operand in self.weights:
                self.tensors[operand] = weight(self.backend, self.weights[operand], operand.spec)
                continue
            needed = [step.needs for step in operand.layout.steps if step.needs is not None]
            if not all(runs(ctx.backend, op, operand.source) for op in needed):
                operand.layout = Layout()
            self.leaves[operand] = operand.leaf(ctx)
            self.tensors[operand] = operand.layout.trace(ctx, self.leaves[operand])
        args = call.mapped(self.tensors.__getitem__)
        self.args = call.op.prepared(ctx, args) if call.op.prepared else args
        made = call.op.open(ctx, self.args) if composed else trace_op(ctx, call.op, args)
        self.results: list[Tensor] = list(made) if isinstance(made, list) else [made]
        self.own = len(self.results)
        if composed or call.op.view or call.op.inline:
            # A view is read directly, and through a copy that runs on the device.
            readable = [result for result in self.results if runs(ctx.backend, ops.contiguous, result)]
            self.results += [result.contiguous(ctx) for result in readable]
        self.specs = [args[i] for i in call.op.operands]
        odd = [tensor for operand, tensor in self.tensors.items() if operand.seed % 2]
        self.kept = [tensor for tensor in odd if tensor.op is not None and tensor.op.name == "duplicate"]

    def leave_out_copies(self) -> None:
        del self.results[self.own :]

    @property
    def level(self) -> Level:
        if self.call.op.inline or self.call.op.view:
            return Level.KERNEL
        if self.refusal:
            return Level.COMPOSITE
        return self.backend.supports(self.call.op, self.specs).level

    @property
    def refusal(self) -> str:
        """The reason, if a composite runs because the backend refused the op; empty before the first run."""
        return self.backend.refusals.get(call_text(self.call.op, self.args), "")

    @property
    def precision(self) -> Precision:
        """The declared precision of the op, or of the coarsest kernel if its composite runs."""
        composed = self.composed or self.level is Level.COMPOSITE
        return declared_precision(self.backend, self.call.op, self.args, composed=composed)

    def write(self, operands: list[Operand] | None = None) -> None:
        for operand, leaf in self.leaves.items():
            if operands is None or operand in operands:
                operand.write(leaf)

    def run(self) -> list[Array]:
        try:
            self.ctx.compute(*self.results, *self.kept)
        except RefusalError as error:
            if self.ctx.counters.runs:
                raise Fault("raised", f"what has run is refused: {error}") from error
            raise
        return [from_bytes(self._read(y), y.dtype, y.shape) for y in self.results]

    def _read(self, result: Tensor) -> bytes:
        data = result.bytes()
        if len(data) != result.nbytes:
            raise Fault("shape", f"{result} has {result.nbytes} bytes, the backend gave {len(data)}")
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.ctx.close()


def make(call: Call, mode: Mode, precision: Precision, variant: int) -> None:
    """Fill in the data of all operands; each after its partner, whose peak limits its range."""
    call.variant = variant
    if variant in call.recorded:
        for operand, data in zip(call.operands(), call.recorded[variant], strict=True):
            operand.hold(from_bytes(data, operand.dtype, operand.shape))
        return
    for operand in sorted(call.operands(), key=lambda o: getattr(o.fill, "partner", None) is not None):
        operand.make(mode, precision, variant)
