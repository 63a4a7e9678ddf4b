"""A Llama of random q4_0 weights on the onnx backend: decode, prefill, what a step costs beside ONNX Runtime's run."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import backbay
from backbay import BackendParams, DType


@dataclass(frozen=True)
class Shape:
    layers: int = 22
    width: int = 2048
    hidden: int = 5632
    heads: int = 32
    kv_heads: int = 4
    vocab: int = 32000

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.head * self.kv_heads


def write_model(path: Path, shape: Shape) -> None:
    """Random blocks of q4_0 with scales that keep activations near 1."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)

    def matrix(name: str, k: int, n: int) -> None:
        raw = rng.integers(0, 256, (n * k // 32, 18), np.uint8)
        scales = (rng.uniform(0.8, 1.2, (len(raw), 1)) / (4.6 * k**0.5)).astype(np.float16)
        raw[:, :2] = scales.view(np.uint8)
        writer.add_tensor(name, raw.reshape(n, -1), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    matrix("token_embd.weight", shape.width, shape.vocab)
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        for name, k, n in (
            ("attn_q", shape.width, shape.width), ("attn_k", shape.width, shape.kv_width),
            ("attn_v", shape.width, shape.kv_width), ("attn_output", shape.width, shape.width),
            ("ffn_gate", shape.width, shape.hidden), ("ffn_up", shape.width, shape.hidden),
            ("ffn_down", shape.hidden, shape.width),
        ):  # fmt: skip
            matrix(f"{at}{name}.weight", k, n)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{at}{name}.weight", np.ones(shape.width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    matrix("output.weight", shape.width, shape.vocab)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()


class Llama:
    """The model and its caches; a step is a kept context."""

    def __init__(self, backend: Any, shape: Shape, capacity: int) -> None:
        self.backend, self.shape, self.capacity = backend, shape, capacity
        self.home = backend.new_context()
        self.caches = [
            [self.home.layer(n).zeros(DType.F32, shape.kv_width, capacity, row_axis=1) for _ in range(2)]
            for n in range(shape.layers)
        ]

    def weight(self, name: str) -> Any:
        return self.backend.get(f"{name}.weight")

    def step(self, tokens: int, history: int) -> Step:
        return Step(self, tokens, history)


class Step:
    """A number of tokens over a padded history; leaves are refilled for every run."""

    def __init__(self, model: Llama, tokens: int, history: int) -> None:
        self.tokens, self.history = tokens, history
        self.ctx = ctx = model.backend.new_context()
        self.ids, self.positions, self.cells = (ctx.input().empty(DType.I32, tokens) for _ in range(3))
        self.mask = ctx.input().empty(DType.F32, history, tokens)
        self.fill(0)
        x = model.weight("token_embd").rows(ctx, self.ids)
        for layer in range(model.shape.layers):
            x = self._layer(ctx.layer(layer), model, layer, x)
        last = x.slice(ctx, 1, tokens - 1, tokens).rms_norm(ctx, model.weight("output_norm"), 1e-5)
        self.logits = model.weight("output").mulmat(ctx, last)
        ctx.forward(self.logits)

    def fill(self, first: int) -> None:
        cells = np.arange(first, first + self.tokens)
        self.ids.from_ints((cells * 7) % 1000)
        self.positions.from_ints(cells)
        self.cells.from_ints(cells)
        self.mask.from_floats(
            np.where(np.arange(self.history) <= cells[:, None], 0, -np.inf).astype(np.float32)
        )

    def run(self, first: int) -> Any:
        self.fill(first)
        self.ctx.compute(self.logits)
        return self.logits.floats()

    def _layer(self, ctx: Any, model: Llama, layer: int, x: Any) -> Any:
        s, tokens = model.shape, self.tokens
        weight = lambda name: model.weight(f"blk.{layer}.{name}")  # noqa: E731
        h = x.rms_norm(ctx, weight("attn_norm"), 1e-5)
        q = weight("attn_q").mulmat(ctx, h).reshape(ctx, s.head, s.heads, tokens)
        k = weight("attn_k").mulmat(ctx, h).reshape(ctx, s.head, s.kv_heads, tokens)
        v = weight("attn_v").mulmat(ctx, h)
        q, k = (y.rope(ctx, self.positions, s.head, 10000.0) for y in (q, k))
        views = []
        for cache, new in zip(model.caches[layer], (k.reshape(ctx, s.kv_width, tokens), v), strict=True):
            ctx.forward(cache.set_rows(ctx, new, self.cells))
            shape = (s.head, s.kv_heads, self.history)
            views.append(cache.view(ctx, 0, shape, (4 * s.head, 4 * s.kv_width)))
        y = q.scaled_dot_product_attention(ctx, *views, self.mask, scale=s.head**-0.5)
        x = weight("attn_output").mulmat(ctx, y.reshape(ctx, s.width, tokens)).add(ctx, x)
        h = x.rms_norm(ctx, weight("ffn_norm"), 1e-5)
        gated = weight("ffn_gate").mulmat(ctx, h).silu(ctx, weight("ffn_up").mulmat(ctx, h))
        return weight("ffn_down").mulmat(ctx, gated).add(ctx, x)


def milliseconds(run: Callable[[], Any], times: int) -> float:
    """The median of several runs."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken)) * 1e3


def resident() -> float:
    """MiB of this process's own, without mapped files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--capacity", type=int, default=2048)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--model", type=Path, help="a file to keep and use again")
    given = parser.parse_args()
    shape = Shape(layers=given.layers)
    with tempfile.TemporaryDirectory() as folder:
        path = given.model or Path(folder) / "random.gguf"
        if not path.exists():
            write_model(path, shape)
        params = BackendParams(num_threads=given.threads, options={"precision": given.precision})
        with backbay.open(path, backend="onnx", params=params) as backend:
            measure(backend, shape, given.capacity, given.runs, path.stat().st_size / 2**20)


def measure(backend: Any, shape: Shape, capacity: int, runs: int, file_size: float) -> None:
    before = resident()
    print(f"load                          {milliseconds(backend.load, 1):9.1f} ms")
    model = Llama(backend, shape, capacity)
    steps: dict[str, Step] = {}

    def first(name: str, tokens: int, history: int) -> None:
        steps[name] = model.step(tokens, history)
        steps[name].run(0)

    for name, tokens, history in (
        ("prefill 512", 512, 512), ("decode at 256", 1, 256), ("decode at 1024", 1, 1024), ("decode at capacity", 1, capacity),
    ):  # fmt: skip
        print(f"first {name:<23} {milliseconds(lambda: first(name, tokens, history), 1):9.1f} ms")  # noqa: B023
    print(f"sessions                      {backend.sessions.created:9d}")
    for name, step in steps.items():
        at = step.history - step.tokens
        print(f"{name:<29} {milliseconds(lambda: step.run(at), 3 if step.tokens > 1 else runs):9.2f} ms")  # noqa: B023
    step = steps["decode at 256"]
    plan = step.ctx.recording._plan
    whole = milliseconds(lambda: step.run(255), 3 * runs)
    bare = milliseconds(lambda: plan._compiled.session.run_with_iobinding(plan._binding), 3 * runs)
    print(f"beside ONNX Runtime's own run {1e3 * (whole - bare):9.0f} us of {1e3 * whole:.0f}")
    used = resident() - before - capacity * shape.layers * shape.kv_width * 8 / 2**20
    print(
        f"private memory                {used:9.0f} MiB, {used / file_size:.2f} of the file, caches left out"
    )


if __name__ == "__main__":
    main()
