"""The forward pass of a Llama in ops of the contract, for benchmarks without the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llama_file import EPS, ROPE_BASE, Shape
from numpy.typing import NDArray

from backbay import Backend, Context, DType, Tensor


class Llama:
    """A loaded model and its caches."""

    def __init__(self, backend: Backend, shape: Shape, cells: int, cache: DType = DType.F16) -> None:
        self.backend, self.shape, self.cells = backend, shape, cells
        store = backend.new_context()
        self.caches = [
            [store.layer(n).zeros(cache, shape.kv_width, cells, row_axis=1) for _ in range(2)]
            for n in range(shape.layers)
        ]

    def weight(self, name: str) -> Tensor:
        found = self.backend.get(f"{name}.weight")
        assert found is not None
        return found

    def step(self, tokens: int, history: int) -> Step:
        return Step(self, tokens, history)


class Step:
    """A context for a number of tokens with a length of history; its leaves are filled for every run."""

    def __init__(self, model: Llama, tokens: int, history: int) -> None:
        self.model, self.tokens, self.history = model, tokens, history
        self.ctx = model.backend.new_context()
        inputs = self.ctx.input()
        self.ids, self.positions, self.cells = (inputs.empty(DType.I32, tokens) for _ in range(3))
        self.mask = inputs.empty(model.backend.cache_config().mask_dtype, history, tokens)
        self.fill(np.arange(tokens), 0)
        x = model.weight("token_embd").rows(self.ctx, self.ids)
        for layer in range(model.shape.layers):
            x = self._layer(self.ctx.layer(layer), layer, x)
        x = x.rms_norm(self.ctx, model.weight("output_norm"), EPS)
        self.logits = model.weight("output").mulmat(self.ctx, x)
        self.ctx.forward(self.logits)

    def fill(self, tokens: NDArray[np.int_] | list[int], first: int) -> None:
        """Fill the leaves with the tokens, for the cells from `first` on."""
        places = np.arange(first, first + self.tokens, dtype=np.int32)
        self.ids.from_ints(tokens)
        self.positions.from_ints(places)
        self.cells.from_ints(places)
        hidden = np.arange(self.history) > places[:, None]
        self.mask.from_floats(np.where(hidden, np.float16(-np.inf), np.float16(0)))

    def run(self, tokens: NDArray[np.int_] | list[int], first: int) -> NDArray[np.float32]:
        """Compute the last token's logits."""
        self.fill(tokens, first)
        self.ctx.compute(self.logits)
        return self.logits.floats()

    def _layer(self, ctx: Context, layer: int, x: Tensor) -> Tensor:
        s, tokens = self.model.shape, self.tokens

        def weight(name: str) -> Tensor:
            return self.model.weight(f"blk.{layer}.{name}")

        h = x.rms_norm(ctx, weight("attn_norm"), EPS)
        q = weight("attn_q").mulmat(ctx, h).reshape(ctx, s.head, s.heads, tokens)
        k = weight("attn_k").mulmat(ctx, h).reshape(ctx, s.head, s.kv_heads, tokens)
        v = weight("attn_v").mulmat(ctx, h)
        q, k = (t.rope(ctx, self.positions, s.head, ROPE_BASE) for t in (q, k))
        held = [
            cache.set_rows(ctx, new, self.cells)
            .reshape(ctx, s.head, s.kv_heads, self.model.cells)
            .slice(ctx, 2, 0, self.history)
            for cache, new in zip(
                self.model.caches[layer], (k.reshape(ctx, s.kv_width, tokens), v), strict=True
            )
        ]
        a = q.scaled_dot_product_attention(ctx, *held, self.mask, scale=s.head**-0.5)
        a = weight("attn_output").mulmat(ctx, a.reshape(ctx, s.width, tokens))
        if layer == s.layers - 1:  # only the last token's logits are needed
            a, x = (t.slice(ctx, 1, tokens - 1, tokens) for t in (a, x))
        x = x.add(ctx, a)
        h = x.rms_norm(ctx, weight("ffn_norm"), EPS)
        gated = weight("ffn_gate").mulmat(ctx, h).silu(ctx, weight("ffn_up").mulmat(ctx, h))
        return x.add(ctx, weight("ffn_down").mulmat(ctx, gated))


def memory() -> dict[str, float]:
    """MiB of real memory of this process: private, all, and the peak; zeros if the system does not report them."""
    told = {"RssAnon": 0.0, "VmRSS": 0.0, "VmHWM": 0.0}
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.exists() else ():
        name, _, value = line.partition(":")
        if name in told:
            told[name] = int(value.split()[0]) / 1024
    return told
