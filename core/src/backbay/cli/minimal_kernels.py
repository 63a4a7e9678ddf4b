"""The smallest set of kernels that runs a model, found by tracing it; core's composites do the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..backend.kernel_backend import KernelBackend, KernelPlan
from ..graph.graph import Graph
from ..ops.declaration import Op
from ..trace.context import Context
from ..trace.tensor import Tensor
from ..types.contract_version import CONTRACT_VERSION
from ..types.dtypes import DType
from ..types.params import COMPOSITE, KERNEL, BackendParams, Support
from ..types.spec import Spec

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 4, 2, 8
HIDDEN, VOCABULARY, HISTORY, TOKENS, LAYERS = 48, 40, 16, 5, 2


class MakeLeaf(Protocol):
    """Makes a weight, cache or input of the model. A weight's name is its name in a GGUF file."""

    def __call__(self, ctx: Context, name: str, dtype: DType, *shape: int) -> Tensor: ...


@dataclass
class Needed:
    """The ops that need a kernel, and the ops that core composes of them."""

    kernels: set[Op[Any, Any]] = field(default_factory=set)
    composites: set[Op[Any, Any]] = field(default_factory=set)


def kernels_needed(trace: Callable[[Context], Tensor]) -> Needed:
    """The kernels that a backend needs for the traced graph, if core's composites run all other ops."""
    needed = Needed()

    class Fewest(KernelBackend):
        contract_version = CONTRACT_VERSION

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            if op.composite is None or op.view:
                return KERNEL
            needed.composites.add(op)
            return COMPOSITE

        def compile(self, graph: Graph) -> KernelPlan:
            needed.kernels |= {node.op for node in graph.nodes if node.op is not None and not node.op.view}
            return super().compile(graph)

    with Fewest(None, BackendParams(alloc_memory=False)) as backend, backend.new_context() as ctx:
        ctx.forward(trace(ctx)).reserve()
    return needed


def leaf_of_nothing(ctx: Context, name: str, dtype: DType, *shape: int) -> Tensor:
    """A leaf without data, for a backend that only measures."""
    return ctx.empty(dtype, *shape)


def llama(ctx: Context, leaf: MakeLeaf = leaf_of_nothing) -> Tensor:
    """The logits of a small Llama for one batch of tokens, with a cache that it writes and reads."""
    tokens = leaf(ctx, "tokens", DType.I32, TOKENS)
    x = leaf(ctx, "token_embd.weight", DType.F32, WIDTH, VOCABULARY).rows(ctx, tokens)
    inputs = Inputs(
        leaf(ctx, "positions", DType.I32, TOKENS),
        leaf(ctx, "locations", DType.I32, TOKENS),
        leaf(ctx, "mask", DType.F32, HISTORY, TOKENS),
    )
    for i in range(LAYERS):
        weights = Weights(ctx.layer(i), leaf, f"blk.{i}.")
        x = x.add(ctx, _attention(ctx, weights, _norm(ctx, weights, x, "attn_norm"), inputs))
        x = x.add(ctx, _feed_forward(ctx, weights, _norm(ctx, weights, x, "ffn_norm")))
    last = Weights(ctx, leaf, "")
    x = _norm(ctx, last, x.rows(ctx, leaf(ctx, "outputs", DType.I32, 1)), "output_norm")
    return last("output", WIDTH, VOCABULARY).mulmat(ctx, x)


@dataclass(frozen=True)
class Inputs:
    """The inputs that change from step to step, beside the tokens."""

    positions: Tensor
    locations: Tensor  # the cells of the cache for this batch
    mask: Tensor


@dataclass(frozen=True)
class Weights:
    """The leaves of a layer, by their short names."""

    ctx: Context
    leaf: MakeLeaf
    prefix: str

    def __call__(self, name: str, *shape: int) -> Tensor:
        return self.leaf(self.ctx, f"{self.prefix}{name}.weight", DType.F32, *shape)

    def cache(self, name: str) -> Tensor:
        return self.leaf(self.ctx, f"{self.prefix}{name}", DType.F16, HEAD_DIM * KV_HEADS, HISTORY)


def _norm(ctx: Context, weights: Weights, x: Tensor, name: str) -> Tensor:
    return x.rms_norm(ctx, weights(name, WIDTH), eps=1e-5)


def _attention(ctx: Context, weights: Weights, x: Tensor, inputs: Inputs) -> Tensor:
    def heads(name: str, count: int) -> Tensor:
        return weights(name, WIDTH, HEAD_DIM * count).mulmat(ctx, x).reshape(ctx, HEAD_DIM, count, TOKENS)

    def remember(name: str, new: Tensor) -> Tensor:
        rows = new.reshape(ctx, HEAD_DIM * KV_HEADS, TOKENS)
        kept = weights.cache(name).set_rows(ctx, rows, inputs.locations)
        return kept.reshape(ctx, HEAD_DIM, KV_HEADS, HISTORY)

    query = heads("attn_q", HEADS).rope(ctx, inputs.positions, HEAD_DIM, 10000.0)
    key = remember("cache_k", heads("attn_k", KV_HEADS).rope(ctx, inputs.positions, HEAD_DIM, 10000.0))
    value = remember("cache_v", heads("attn_v", KV_HEADS))
    y = query.scaled_dot_product_attention(ctx, key, value, inputs.mask, scale=HEAD_DIM**-0.5)
    return weights("attn_output", WIDTH, WIDTH).mulmat(ctx, y.reshape(ctx, WIDTH, TOKENS))


def _feed_forward(ctx: Context, weights: Weights, x: Tensor) -> Tensor:
    up = weights("ffn_up", WIDTH, HIDDEN).mulmat(ctx, x)
    gated = weights("ffn_gate", WIDTH, HIDDEN).mulmat(ctx, x).silu(ctx, up)
    return weights("ffn_down", HIDDEN, WIDTH).mulmat(ctx, gated)
