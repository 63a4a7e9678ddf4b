"""Correct backends that differ from the reference wherever the contract leaves a choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from backbay import Buffer, CacheConfig, DType, Graph, KernelBackend, Node, Placement, Precision, Spec, ops
from backbay.internals import KernelPlan
from backbay.plugin import HostBuffer

from .fault import AnyOp, float16, named, reading_zeros
from .fused import Array, attention, exponentials

Kernels = type[KernelBackend]
Variant = Callable[[Kernels], Kernels]

CORRECT: dict[str, Variant] = {}
"""Every correct variant by its name."""


def correct(variant: Variant) -> Variant:
    """Register a function that makes a correct backend from the reference."""
    CORRECT[variant.__name__] = variant
    return variant


def derived(right: Kernels, **changed: Any) -> Kernels:
    """The backend with other class attributes; other kernels replace some of its own."""
    if "kernels" in changed:
        changed["kernels"] = {**right.kernels, **changed["kernels"]}
    return type("Derived", (right,), changed)


def booking(right: Kernels, more: Callable[[Node], int], **changed: Any) -> Kernels:
    """The backend with other class attributes, whose kernels need more working memory."""
    own = right.working_memory
    return derived(right, working_memory=lambda backend, node: own(backend, node) + more(node), **changed)


def scores(node: Node) -> int:
    """The bytes of all scores of attention, thrice."""
    if node.op is not ops.scaled_dot_product_attention:
        return 0
    query, key = node.args[0], node.args[1]
    return int(3 * 8 * query.dim(1) * query.dim(2) * query.dim(3) * key.dim(2))


def single(backend: KernelBackend, op: AnyOp, specs: Sequence[Spec | None]) -> Precision:
    return Precision(DType.F32, DType.F32)


def lacking(right: Kernels, missing: Callable[[AnyOp], bool], **changed: Any) -> Kernels:
    kept = {op: kernel for op, kernel in right.kernels.items() if not missing(op)}
    return type("Lacking", (right,), {"kernels": kept, **changed})


@correct
def single_precision(right: Kernels) -> Kernels:
    """Kernels read and sum float32, as `precision` declares."""
    return derived(right, float_dtype=np.float32)


def sum_rows(x: Array) -> Array:
    """Sums of rows in float32, from the last element to the first, one after the other."""
    if x.shape[-1] == 0:
        return np.zeros((*x.shape[:-1], 1), np.float32)
    return np.add.accumulate(x[..., ::-1], -1, dtype=np.float32)[..., -1:]


@correct
def sums_from_the_end(right: Kernels) -> Kernels:
    """Rows are summed in float32, one element after the other, from their end."""

    def softmax(x: Array) -> Array:
        powers = exponentials(x).astype(np.float32)
        return np.asarray(powers / sum_rows(powers))

    def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-5) -> Array:
        y = x / np.sqrt(sum_rows(x * x) / np.float32(x.shape[-1]) + np.float32(eps))
        return y if weight is None else y * weight.reshape(-1)

    def mean(x: Array) -> Array:
        return sum_rows(x) / np.float32(x.shape[-1])

    own = {ops.softmax: softmax, ops.sum_rows: sum_rows, ops.rms_norm: rms_norm, ops.mean: mean}
    return derived(right, float_dtype=np.float32, kernels=own)


@correct
def fused_multiply_add(right: Kernels) -> Kernels:
    """Four products are added exactly and rounded to float32 once, as by dot instructions, in 8 lanes."""
    product = right.kernels[ops.mulmat]

    def mulmat(w: Array, x: Array) -> Array:
        lanes: list[Any] = [np.float32(0)] * 8
        extent = max(w.shape[-1], 1)
        for lane, start in enumerate(range(0, extent, 4)):
            part = product(w[..., start : start + 4], x[..., start : start + 4])
            lanes[lane % 8] = (lanes[lane % 8] + part).astype(np.float32)
        while len(lanes) > 1:
            lanes = [np.float32(a) + np.float32(b) for a, b in zip(lanes[::2], lanes[1::2], strict=True)]
        return np.broadcast_to(lanes[0], product(w, x).shape) if np.ndim(lanes[0]) == 0 else lanes[0]

    return derived(right, kernels={ops.mulmat: mulmat, ops.mulmat_full_prec: mulmat}, precision=single)


@correct
def other_order_of_ties(right: Kernels) -> Kernels:
    """Equal elements come in reverse, and NaN comes first."""

    def argsort(x: Array) -> Array:
        keys = np.where(np.isnan(x), -np.inf, x)[..., ::-1]
        return np.asarray(x.shape[-1] - 1 - np.argsort(keys, axis=-1, kind="stable"))

    def top_k(x: Array, k: int) -> Array:
        keys = np.where(np.isnan(x), -np.inf, -x)[..., ::-1]
        return np.asarray((x.shape[-1] - 1 - np.argsort(keys, axis=-1, kind="stable"))[..., :k])

    return derived(right, kernels={ops.argsort: argsort, ops.top_k: top_k})


@correct
def other_content_of_fresh_memory(right: Kernels) -> Kernels:
    """Unwritten memory holds large numbers, before the first run and between runs."""

    class OtherContent(right):  # type: ignore[misc, valid-type]
        def allocate(self, spec: Spec, placement: Placement) -> Buffer:
            buffer = HostBuffer(spec.nbytes, self.params.debug)
            buffer.data[:] = 0x7B
            return buffer

        def run_plan(self, plan: KernelPlan, cancel: Any) -> None:
            for node in plan.graph.nodes:
                if node.op is not None and not node.is_view:
                    plan.arrays[node.index].reshape(-1).view(np.uint8)[...] = 0x7B
            super().run_plan(plan, cancel)

    return OtherContent


@correct
def other_choices_at_the_edges(right: Kernels) -> Kernels:
    """Where the documentation allows both 0 and NaN, results differ from the reference's."""
    kernel = right.kernels

    def relu(x: Array, up: Array | None = None) -> Array:
        y = np.where(x > 0, x, 0)
        return y if up is None else y * up

    def silu(x: Array, up: Array | None = None) -> Array:
        return np.where(np.isneginf(x), np.nan if up is None else 0, kernel[ops.silu](x, up))

    def clamp(x: Array, min: float, max: float) -> Array:
        return np.where(np.isnan(x), min, kernel[ops.clamp](x, min, max))

    def attend(*args: Any, **keywords: Any) -> Array:
        return attention(
            *args, change_weights=lambda w: np.where(np.isnan(w).all(-1, keepdims=True), 0, w), **keywords
        )

    own = {ops.relu: relu, ops.silu: silu, ops.clamp: clamp, ops.scaled_dot_product_attention: attend}
    return booking(right, scores, kernels=own)


@correct
def memory_is_never_shared(right: Kernels) -> Kernels:
    """Every result of a graph keeps its own memory."""

    class NeverShared(right):  # type: ignore[misc, valid-type]
        def compile(self, graph: Graph) -> KernelPlan:
            kept = [n for n in graph.nodes if n.op is not None and not n.is_view and n not in graph.outputs]
            plan: KernelPlan = super().compile(replace(graph, outputs=(*graph.outputs, *kept)))
            return plan

    return NeverShared


@correct
def half_precision_activations(right: Kernels) -> Kernels:
    """Products round their activations to f16, as declared; `mulmat_full_prec` does not."""
    narrow = named("mulmat", "mulmat_id", "conv2d", "conv3d", "conv1d_dw")
    product = dict(right.kernels)

    def halved(op: AnyOp, position: int) -> Callable[..., Array]:
        def kernel(*args: Any, **keywords: Any) -> Array:
            changed = [float16(a) if i == position else a for i, a in enumerate(args)]
            return np.asarray(product[op](*changed, **keywords))

        return kernel

    def precision(backend: KernelBackend, op: AnyOp, specs: Sequence[Spec | None]) -> Precision:
        return Precision(DType.F16 if op in narrow else DType.F32, DType.F32)

    own = {op: halved(op, 0 if op is ops.conv1d_dw else 1) for op in narrow}
    return derived(right, kernels=own, precision=precision)


@correct
def subnormal_operands_are_zeros(right: Kernels) -> Kernels:
    """Arithmetic reads operands below f32's normal range as zeros, as declared; moves and casts keep them."""

    def precision(backend: KernelBackend, op: AnyOp, specs: Sequence[Spec | None]) -> Precision:
        return replace(right.precision(backend, op, specs), flushes_subnormals=True)

    return derived(reading_zeros(right, 2.0**-126), precision=precision)


@correct
def composites_for_all_that_have_one(right: Kernels) -> Kernels:
    """Only ops without a composite have a kernel; the others run as their composites."""
    return lacking(right, lambda op: op.composite is not None, precision=single)


@correct
def a_smaller_backend(right: Kernels) -> Kernels:
    """Some ops have no kernel, and `supports` says so."""
    missing = named("conv3d", "ssm_scan", "solve_tri", "interpolate")
    return lacking(right, missing.__contains__)


@correct
def another_shape_of_caches(right: Kernels) -> Kernels:
    """Caches are padded, values permuted, masks padded in f16, and attention is one kernel."""
    config = CacheConfig(32, True, DType.F16, 8, (DType.F32, DType.F16, DType.BF16))
    own = {ops.scaled_dot_product_attention: attention}
    return booking(right, scores, kernels=own, cache_config=lambda backend: config)


@correct
def chance_decides_the_order_of_sums(right: Kernels) -> Kernels:
    """Each sum takes another order in float32, and `deterministic` is False."""
    product = right.kernels[ops.mulmat]
    rng = np.random.default_rng(0)

    def mulmat(w: Array, x: Array) -> Array:
        order = rng.permutation(w.shape[-1])
        return np.asarray(product(w[..., order].astype(np.float32), x[..., order].astype(np.float32)))

    def reordered(node: Node) -> int:
        """The bytes of operands in another order, in float64 and in float32."""
        return 12 * sum(operand.size for operand in node.operands) if node.op is ops.mulmat else 0

    own = {ops.mulmat: mulmat}
    return booking(right, reordered, kernels=own, deterministic=False, precision=single)


def variants(right: Kernels) -> dict[str, Kernels]:
    """All correct backends, the reference among them."""
    made = {name: variant(right) for name, variant in CORRECT.items()}
    for name, kind in made.items():
        kind.name = name
    return {"reference": right, **made}
