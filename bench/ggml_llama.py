"""A Llama of random weights on the ggml backend: decode and prefill by where weights lie, and a step's host time.

    python bench/ggml_llama.py --dtype q4_0 --weights mapped copied auto

Each runs in a process of its own, in turns; ratios are those of the medians, to the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import backbay
from backbay import BackendParams, Context, DType, Tensor

CELLS = 1024
PROMPT = 512
EPS = 1e-5


@dataclass(frozen=True)
class Shape:
    layers: int = 16
    width: int = 2048
    hidden: int = 8192
    heads: int = 32
    kv_heads: int = 8
    vocab: int = 32000

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.head * self.kv_heads


def write_model(path: Path, shape: Shape, dtype: str) -> None:
    """Random weights that keep activations near 1; the blocks of one shape are made once."""
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    writer, made = gguf.GGUFWriter(path, "llama"), {}
    rng = np.random.default_rng(0)
    write_metadata(writer, shape)

    def matrix(name: str, k: int, n: int) -> None:
        if (k, n) not in made:
            numbers = (rng.standard_normal((n, k)) / k**0.5).astype(np.float32)
            made[k, n] = numbers.astype(np.float16) if dtype == "f16" else gguf.quants.quantize(numbers, kind)
        writer.add_tensor(name, made[k, n], raw_dtype=kind)

    matrix("token_embd.weight", shape.width, shape.vocab)
    for layer in range(shape.layers):
        for name, k, n in (
            ("attn_q", shape.width, shape.width),
            ("attn_k", shape.width, shape.kv_width),
            ("attn_v", shape.width, shape.kv_width),
            ("attn_output", shape.width, shape.width),
            ("ffn_gate", shape.width, shape.hidden),
            ("ffn_up", shape.width, shape.hidden),
            ("ffn_down", shape.hidden, shape.width),
        ):
            matrix(f"blk.{layer}.{name}.weight", k, n)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(shape.width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(shape.width, np.float32))
    matrix("output.weight", shape.width, shape.vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_metadata(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(CELLS)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_vocab_size(shape.vocab)
    writer.add_tokenizer_model("llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"t{n}" for n in range(shape.vocab - 3))]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * shape.vocab)
    writer.add_token_types([2, 3, 3, *[1] * (shape.vocab - 3)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


class Step:
    """A kept context for so many tokens that see so much history."""

    def __init__(
        self, backend: backbay.Backend, shape: Shape, caches: list[Tensor], tokens: int, history: int
    ) -> None:
        self.ctx, self.history, self.tokens = backend.new_context(), history, tokens
        make = self.ctx.input()
        self.ids, self.positions, self.cells = (make.from_ints(np.zeros(tokens, np.int32)) for _ in range(3))
        self.mask = make.empty(DType.F16, history, tokens)
        x = backend.get("token_embd.weight").rows(self.ctx, self.ids)
        for layer in range(shape.layers):
            x = self.block(backend, shape, layer, x, caches[2 * layer], caches[2 * layer + 1])
        x = x.slice(self.ctx, 1, tokens - 1, tokens).rms_norm(
            self.ctx, backend.get("output_norm.weight"), eps=EPS
        )
        self.logits = backend.get("output.weight").mulmat(self.ctx, x)

    def block(
        self, backend: Any, shape: Shape, layer: int, x: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        ctx: Context = self.ctx.layer(layer)

        def weight(name: str) -> Tensor:
            return backend.get(f"blk.{layer}.{name}.weight")

        h = x.rms_norm(ctx, weight("attn_norm"), eps=EPS)
        q = weight("attn_q").mulmat(ctx, h).reshape(ctx, shape.head, shape.heads, self.tokens)
        k = weight("attn_k").mulmat(ctx, h).reshape(ctx, shape.head, shape.kv_heads, self.tokens)
        v = weight("attn_v").mulmat(ctx, h)
        q, k = (t.rope(ctx, self.positions, shape.head, 1e4) for t in (q, k))
        held = [
            cache.set_rows(ctx, new, self.cells)
            .reshape(ctx, shape.head, shape.kv_heads, CELLS)
            .slice(ctx, 2, 0, self.history)
            for cache, new in ((keys, k.reshape(ctx, shape.kv_width, self.tokens)), (values, v))
        ]
        a = q.scaled_dot_product_attention(
            ctx, *held, self.mask, scale=shape.head**-0.5, cache_config_applied=True
        )
        x = x.add(ctx, weight("attn_output").mulmat(ctx, a.reshape(ctx, shape.width, self.tokens)))
        h = x.rms_norm(ctx, weight("ffn_norm"), eps=EPS)
        h = weight("ffn_gate").mulmat(ctx, h).silu(ctx, weight("ffn_up").mulmat(ctx, h))
        return x.add(ctx, weight("ffn_down").mulmat(ctx, h))

    def run(self, first: int) -> None:
        """The step for the cells from `first` on."""
        places = np.arange(first, first + self.tokens, dtype=np.int32)
        self.ids.from_ints(places % 1000 + 3)
        self.positions.from_ints(places)
        self.cells.from_ints(places)
        seen = np.arange(self.history)[None, :] <= places[:, None]
        self.mask.from_floats(np.where(seen, 0, -np.inf).astype(np.float16))
        self.ctx.compute(self.logits)


def backbay_side(path: Path, shape: Shape, threads: int, options: dict[str, Any], rounds: int) -> None:
    """Answers each line of standard input with the rates of a round."""
    started = time.perf_counter()
    params = BackendParams(num_threads=threads, options=options)
    with backbay.open(path, backend="ggml", params=params) as backend:
        backend.load()
        store = backend.new_context()
        caches = [store.zeros(DType.F16, shape.kv_width, CELLS) for _ in range(2 * shape.layers)]
        decode, prefill = (Step(backend, shape, caches, n, h) for n, h in ((1, 768), (PROMPT, PROMPT)))
        prefill.run(0)
        first = time.perf_counter() - started
        decode.run(PROMPT)
        serve(prefill.run, decode.run, first, rounds)


def serve(prefill: Any, decode: Any, first: float, rounds: int) -> None:
    """One round for every line that is asked."""
    print(json.dumps({"first token": first}), flush=True)
    for _ in range(rounds):
        sys.stdin.readline()
        begun = time.perf_counter()
        prefill(0)
        middle = time.perf_counter()
        for n in range(16):
            decode(PROMPT + n)
        end = time.perf_counter()
        print(json.dumps({"prefill": PROMPT / (middle - begun), "decode": 16 / (end - middle)}), flush=True)


def host_time() -> float:
    """Microseconds that a step of a one-layer model costs beside ggml's own run, at its quickest."""
    shape = Shape(layers=16, width=64, hidden=64, heads=2, kv_heads=1, vocab=64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        write_model(path, shape, "q8_0")
        with backbay.open(path, backend="ggml", params=BackendParams(num_threads=1)) as backend:
            backend.load()
            store = backend.new_context()
            caches = [store.zeros(DType.F16, shape.kv_width, CELLS) for _ in range(2 * shape.layers)]
            step = Step(backend, shape, caches, 1, 256)
            step.run(0)
            plan = step.ctx.recording._plan
            whole, inside = [], []
            for _ in range(500):
                begun = time.perf_counter()
                step.ids.from_ints([3])
                step.positions.from_ints([5])
                step.cells.from_ints([5])
                step.ctx.compute(step.logits)
                whole.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                plan._lib.ggml_graph_compute(plan._graph, plan._cplan)
                inside.append(time.perf_counter() - begun)
            return 1e6 * (min(whole) - min(inside))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", default="q4_0", choices=["q4_0", "q8_0", "f16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weights", nargs="+", default=["mapped", "copied", "auto"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--side", help="be one of the processes, for this choice of weights")
    args = parser.parse_args()
    shape = Shape(layers=args.layers)
    if args.side:
        backbay_side(args.model, shape, args.threads, {"weights": args.side}, args.rounds)
    else:
        compare(args, shape)


def compare(args: argparse.Namespace, shape: Shape) -> None:
    print(f"host time of a step of 16 layers: {host_time():.0f} us")
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "model.gguf"
        if not path.exists():
            write_model(path, shape, args.dtype)
        sides = {name: start(name, path, args) for name in args.weights}
        for name, side in sides.items():
            print(
                f"{name}: loaded, and first token after {json.loads(side.stdout.readline())['first token']:.2f} s"
            )
        rates: dict[str, dict[str, list[float]]] = {name: {"prefill": [], "decode": []} for name in sides}
        for _ in range(args.rounds):
            for name, side in sides.items():
                side.stdin.write("\n")
                side.stdin.flush()
                for what, rate in json.loads(side.stdout.readline()).items():
                    rates[name][what].append(rate)
        for side in sides.values():
            side.communicate()
    for what in ("prefill", "decode"):
        medians = {name: statistics.median(rates[name][what]) for name in sides}
        first = medians[args.weights[0]]
        told = ", ".join(f"{name} {rate:.2f} tokens/s ({rate / first:.2f})" for name, rate in medians.items())
        print(f"{args.dtype} {what}: {told}")


def start(name: str, path: Path, args: argparse.Namespace) -> subprocess.Popen[str]:
    given = ["--layers", str(args.layers), "--threads", str(args.threads), "--rounds", str(args.rounds)]
    command = [sys.executable, __file__, "--side", name, "--model", str(path), *given]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    main()
