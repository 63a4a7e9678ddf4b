"""The time of decoding with adapters, beside the time without: 8 sequences, each with one of 4 adapters.

    python lab/bench/engine_adapters.py --shape small --dtype q8_0 --backends ggml onnx
    python lab/bench/engine_adapters.py --threads 1  # the processor's time is right on a busy machine, too

Both kinds of rounds take turns, in one process, and the best round of each kind counts. The prompts are in the cache. The
ratio is the time of a step without adapters over that with them, by the clock and by the processor.
"""

from __future__ import annotations

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
        model, backend, context=256, parallel=2 * SEQUENCES, num_threads=args.threads, adapters=adapters
    ) as llm:
        plain, mixed = [None] * SEQUENCES, [names[n % len(names)] for n in range(SEQUENCES)]
        found: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
        for _ in range(args.rounds + 2):  # two rounds fill the cache
            for kind, choice in (("without", plain), ("with", mixed)):
                found[kind].append(step_time(llm, choice, args.tokens))
    for what, which in (("clock", 0), ("processor", 1)):
        without, with_ = (min(each[which] for each in found[kind][2:]) for kind in ("without", "with"))
        told = (
            f"{1e3 * without:.2f} ms a step without, {1e3 * with_:.2f} ms with, ratio {without / with_:.3f}"
        )
        print(f"{backend}, by the {what}: {told}", flush=True)


def step_time(llm: backbay_engine.LLM, choice: list[str | None], count: int) -> tuple[float, float]:
    """Seconds of a step of all sequences, by the clock and of the processor."""
    begun = time.perf_counter(), time.process_time()
    handles = [
        llm.submit([300 + n, *range(400, 400 + DEPTH)], max_tokens=count, temperature=0, adapter=adapter)
        for n, adapter in enumerate(choice)
    ]
    for handle in handles:
        handle.result()
    return (time.perf_counter() - begun[0]) / count, (time.process_time() - begun[1]) / count


if __name__ == "__main__":
    main()
