"""The kernels that a small Llama and a small encoder need, found by tracing them; core's composites do the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from backbay.backend.backend import Backend
from backbay.backend.kernels.kernel_backend import KernelBackend, KernelPlan
from backbay.graph.graph import Graph
from backbay.ops.op_declaration import OPS, Op
from backbay.trace.context import Context
from backbay.trace.tensor import Tensor
from backbay.types.backend_declarations import COMPOSITE, KERNEL, Level, Support
from backbay.types.contract_version import CONTRACT_VERSION
from backbay.types.dtype import DType
from backbay.types.params import BackendParams
from backbay.types.spec import Spec

WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 4, 2, 8
HIDDEN, VOCABULARY, HISTORY, TOKENS, LAYERS = 48, 40, 16, 5, 2

Has = Callable[[Op[Any, Any], Sequence[Spec | None]], bool]


class LeafMaker(Protocol):
    """Makes a weight, cache or input of the model. A weight's name is its name in a GGUF file."""

    def __call__(self, ctx: Context, name: str, dtype: DType, *shape: int) -> Tensor: ...


def leaf_of_nothing(ctx: Context, name: str, dtype: DType, *shape: int) -> Tensor:
    """A leaf without data, for a backend that only measures."""
    return ctx.empty(dtype, *shape)


def trace_llama(ctx: Context, leaf: LeafMaker = leaf_of_nothing) -> Tensor:
    """The logits of a small Llama for one batch of tokens, with a cache that it writes and reads."""
    tokens = leaf(ctx, "tokens", DType.I32, TOKENS)
    x = leaf(ctx, "token_embd.weight", DType.F32, WIDTH, VOCABULARY).rows(ctx, tokens)
    # The inputs that change from step to step, beside the tokens; the locations are the cells of the cache for this batch.
    positions, locations = (leaf(ctx, name, DType.I32, TOKENS) for name in ("positions", "locations"))
    inputs = positions, locations, leaf(ctx, "mask", DType.F32, HISTORY, TOKENS)
    for i in range(LAYERS):
        weights = LayerLeafMaker(ctx.layer(i), leaf, f"blk.{i}.")
        x = x.add(ctx, _attention(ctx, weights, _norm(ctx, weights, x, "attn_norm"), *inputs))
        x = x.add(ctx, _feed_forward(ctx, weights, _norm(ctx, weights, x, "ffn_norm")))
    last = LayerLeafMaker(ctx, leaf, "")
    x = _norm(ctx, last, x.rows(ctx, leaf(ctx, "outputs", DType.I32, 1)), "output_norm")
    return last("output", WIDTH, VOCABULARY).mulmat(ctx, x)


@dataclass(frozen=True)
class LayerLeafMaker:
    """The leaves of a layer, by their short names."""

    ctx: Context
    leaf: LeafMaker
    prefix: str

    def __call__(self, name: str, *shape: int) -> Tensor:
        return self.leaf(self.ctx, f"{self.prefix}{name}.weight", DType.F32, *shape)

    def cache(self, name: str) -> Tensor:
        return self.leaf(self.ctx, f"{self.prefix}{name}", DType.F16, HEAD_DIM * KV_HEADS, HISTORY)


def _norm(ctx: Context, weights: LayerLeafMaker, x: Tensor, name: str) -> Tensor:
    return x.rms_norm(ctx, weights(name, WIDTH), eps=1e-5)


def _attention(
    ctx: Context, weights: LayerLeafMaker, x: Tensor, positions: Tensor, locations: Tensor, mask: Tensor
) -> Tensor:
    def heads(name: str, count: int) -> Tensor:
        return weights(name, WIDTH, HEAD_DIM * count).mulmat(ctx, x).reshape(ctx, HEAD_DIM, count, TOKENS)

    def remember(name: str, new: Tensor) -> Tensor:
        rows = new.reshape(ctx, HEAD_DIM * KV_HEADS, TOKENS)
        kept = weights.cache(name).set_rows(ctx, rows, locations)
        return kept.reshape(ctx, HEAD_DIM, KV_HEADS, HISTORY)

    query = heads("attn_q", HEADS).rope(ctx, positions, HEAD_DIM, 10000.0)
    key = remember("cache_k", heads("attn_k", KV_HEADS).rope(ctx, positions, HEAD_DIM, 10000.0))
    value = remember("cache_v", heads("attn_v", KV_HEADS))
    y = query.scaled_dot_product_attention(ctx, key, value, mask, scale=HEAD_DIM**-0.5)
    return weights("attn_output", WIDTH, WIDTH).mulmat(ctx, y.reshape(ctx, WIDTH, TOKENS))


def _feed_forward(ctx: Context, weights: LayerLeafMaker, x: Tensor) -> Tensor:
    up = weights("ffn_up", WIDTH, HIDDEN).mulmat(ctx, x)
    gated = weights("ffn_gate", WIDTH, HIDDEN).mulmat(ctx, x).silu(ctx, up)
    return weights("ffn_down", HIDDEN, WIDTH).mulmat(ctx, gated)


def trace_encoder(ctx: Context, leaf: LeafMaker = leaf_of_nothing) -> Tensor:
    """The embeddings of a small BERT for one batch of texts, each the mean of its tokens."""
    top = LayerLeafMaker(ctx, leaf, "")
    x = top("token_embd", WIDTH, VOCABULARY).rows(ctx, leaf(ctx, "tokens", DType.I32, TOKENS))
    x = x.add(ctx, top("position_embd", WIDTH, TOKENS).rows(ctx, leaf(ctx, "positions", DType.I32, TOKENS)))
    x = _layer_norm(ctx, top, x, "token_embd_norm")
    mask = leaf(ctx, "mask", DType.F32, TOKENS, TOKENS)
    for i in range(LAYERS):
        weights = LayerLeafMaker(ctx.layer(i), leaf, f"blk.{i}.")
        x = _layer_norm(ctx, weights, x.add(ctx, _self_attention(ctx, weights, x, mask)), "attn_output_norm")
        up = _biased(ctx, weights, x, "ffn_up", WIDTH, HIDDEN).gelu_erf(ctx)
        x = x.add(ctx, _biased(ctx, weights, up, "ffn_down", HIDDEN, WIDTH))
        x = _layer_norm(ctx, weights, x, "layer_output_norm")
    shares = leaf(ctx, "shares", DType.F32, TOKENS, 1)  # of each token in the mean of a text
    return x.permute(ctx, 1, 0).contiguous(ctx).mulmat(ctx, shares).l2_norm(ctx)


def _self_attention(ctx: Context, weights: LayerLeafMaker, x: Tensor, mask: Tensor) -> Tensor:
    def heads(name: str) -> Tensor:
        return _biased(ctx, weights, x, name, WIDTH, WIDTH).reshape(ctx, HEAD_DIM, HEADS, TOKENS)

    query, key, value = map(heads, ("attn_q", "attn_k", "attn_v"))
    y = query.scaled_dot_product_attention(ctx, key, value, mask, scale=HEAD_DIM**-0.5)
    return _biased(ctx, weights, y.reshape(ctx, WIDTH, TOKENS), "attn_output", WIDTH, WIDTH)


def _biased(ctx: Context, weights: LayerLeafMaker, x: Tensor, name: str, *shape: int) -> Tensor:
    return weights(name, *shape).mulmat(ctx, x).add(ctx, weights(f"{name}.bias", shape[-1]))


def _layer_norm(ctx: Context, weights: LayerLeafMaker, x: Tensor, name: str) -> Tensor:
    return x.layer_norm(ctx, weights(name, WIDTH), weights(f"{name}.bias", WIDTH), eps=1e-5)


GOALS: dict[str, Callable[[Context], Tensor]] = {"a Llama": trace_llama, "an encoder": trace_encoder}


@dataclass
class KernelNeeds:
    """The ops that need a kernel, in the order of their first use, and the ops that core composes of them."""

    kernels: dict[Op[Any, Any], None] = field(default_factory=dict)
    composites: dict[Op[Any, Any], None] = field(default_factory=dict)


def nothing(op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
    return False


def kernels_needed(trace: Callable[[Context], Tensor], has: Has = nothing) -> KernelNeeds:
    """The fewest kernels that a backend needs for the traced graph, besides those that it has."""
    needed = KernelNeeds()

    class Fewest(KernelBackend):
        contract_version = CONTRACT_VERSION

        def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
            if op.composite is None or op.view or has(op, specs):
                return KERNEL
            needed.composites[op] = None
            return COMPOSITE

        def compile(self, graph: Graph) -> KernelPlan:
            for node in graph.nodes:
                op = node.op
                if op and not op.view and not has(op, [node.args[i] for i in op.operands]):
                    needed.kernels[op] = None
            return super().compile(graph)

    with Fewest(None, BackendParams(alloc_memory=False)) as backend, backend.new_context() as ctx:
        ctx.forward(trace(ctx)).reserve()
    return needed


def next_kernels(backend: Backend) -> dict[str, list[Op[Any, Any]]]:
    """The kernels that a backend lacks to run a Llama, then an encoder, then every op; a kernel is named once."""

    def has(op: Op[Any, Any], specs: Sequence[Spec | None]) -> bool:
        return backend.supports(op, specs).level is Level.KERNEL

    missing = {goal: list(kernels_needed(trace, has).kernels) for goal, trace in GOALS.items()}
    own = [op for op in OPS.values() if not (op.composite or op.view or op.inline)]
    missing["every op"] = [op for op in own if op not in backend.kernels]
    seen: set[Op[Any, Any]] = set()
    for goal, ops in missing.items():
        missing[goal] = [op for op in ops if op not in seen]
        seen |= {*ops}
    return missing
