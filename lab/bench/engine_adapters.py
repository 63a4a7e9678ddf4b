"""The time of decoding with adapters, beside the time without: 8 sequences, each with one of 4 adapters.

    python lab/bench/engine_adapters.py --shape small --dtype q8_0 --backends ggml onnx

Both kinds of rounds take turns, in one process. The ratio is that of the medians: tokens per second with adapters over
tokens per second without.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from llama_file import SHAPES, arguments, write_model

import backbay_engine

SEQUENCES, DEPTH = 8, 64


def main() -> None:
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--backends", nargs="+", default=["ggml"])
    parser.add_argument("--adapters", type=int, default=4)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=24, help="generated in a round, by each sequence")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or Path(folder) / "model.gguf"
        if args.model is None:
            write_model(model, SHAPES[args.shape], args.dtype)
        adapters = {f"a{n}": write_adapter(Path(folder) / f"{n}.gguf", args, n) for n in range(args.adapters)}
        for backend in args.backends:
            compare(model, backend, adapters, args)


def write_adapter(path: Path, args: Any, seed: int) -> Path:
    """An adapter for all matrices of all blocks, in f16."""
    rng, shape = np.random.default_rng(seed), SHAPES[args.shape]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * args.rank)
    for layer in range(shape.layers):
        for name, inputs, outputs in shape.matrices(layer):
            down, up = rng.standard_normal((args.rank, inputs)), rng.standard_normal((outputs, args.rank))
            writer.add_tensor(f"{name}.lora_a", (down / inputs).astype(np.float16))
            writer.add_tensor(f"{name}.lora_b", (up / args.rank).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def compare(model: Path, backend: str, adapters: dict[str, Path], args: Any) -> None:
    names = [*adapters]
    with backbay_engine.load(
        model, backend, context=256, parallel=SEQUENCES, num_threads=args.threads, adapters=adapters
    ) as llm:
        plain, mixed = [None] * SEQUENCES, [names[n % len(names)] for n in range(SEQUENCES)]
        rates = {"without": list[float](), "with": list[float]()}
        for _ in range(args.rounds + 1):
            for kind, choice in (("without", plain), ("with", mixed)):
                rates[kind].append(rate(llm, choice, args.tokens))
    without, with_ = (statistics.median(rates[kind][1:]) for kind in ("without", "with"))
    steps = [1e3 * SEQUENCES / each for each in (without, with_)]
    print(
        f"{backend}: {steps[0]:.2f} ms a step without, {steps[1]:.2f} ms with, ratio {with_ / without:.3f}",
        flush=True,
    )


def rate(llm: backbay_engine.LLM, choice: list[str | None], count: int) -> float:
    """Tokens per second of all sequences together, while all of them generate."""
    begun: list[float] = []
    handles = [
        llm.submit(
            [300 + n, *range(400, 400 + DEPTH)],
            max_tokens=count,
            temperature=0,
            adapter=adapter,
            on_step=lambda step: begun.append(time.perf_counter()),
        )
        for n, adapter in enumerate(choice)
    ]
    for handle in handles:
        handle.result()
    inside = sorted(begun)[SEQUENCES * 4 : -SEQUENCES * 2]
    return (len(inside) - 1) / (inside[-1] - inside[0])


if __name__ == "__main__":
    main()
