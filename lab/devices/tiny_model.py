"""The tiny model with all, half and none of its layers on a device, beside the NumPy reference.

    python lab/devices/tiny_model.py onnx WebGPU:0 --option provider=webgpu

With half of the layers on the device, the ops of the others must run on the CPU.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

from backbay import BackendParams, GPULayers, GPULayersList
from backbay_engine import LLM, load

MODEL = Path(__file__).parents[2] / "examples" / "models" / "backbay-tiny-f16.gguf"
PROMPT, ANSWER = "sum 417 268 =", "685"
CLOSE = 1e-4  # NMSE of logits, beside the reference


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("device")
    parser.add_argument("--option", action="append", default=[])
    args = parser.parse_args()
    options = dict(option.split("=", 1) for option in args.option)
    with load(MODEL, backend="cpu_ref") as reference:
        blocks, wanted = reference.backend.blocks.count, reference.logits(PROMPT)
    wrong, recorded = 0, Recorded()
    logging.getLogger("backbay.onnx").addHandler(recorded)
    logging.getLogger("backbay.onnx").setLevel(logging.INFO)
    for name, layers in (
        ("all", range(blocks + 1)),
        ("half", range(blocks // 2, blocks + 1)),
        ("none", range(0)),
    ):
        placed = GPULayersList([GPULayers(args.device, layers)] if layers else [])
        params = BackendParams(gpu_layers=placed, options=options if layers else {})
        with load(MODEL, backend=args.backend, params=params) as llm:
            error = np.mean((llm.logits(PROMPT) - wanted) ** 2) / np.mean(wanted**2)
            recorded.count = 0
            texts = [llm.generate(PROMPT, max_tokens=8, temperature=0).text.strip() for _ in range(3)]
            on_device = sum(gpu.total() for gpu in llm.memory().gpus)
            ops = ops_by_place(llm, layers)
        strays = ops.get((False, args.device), 0)
        right = texts == [ANSWER] * 3 and error < CLOSE and bool(on_device) == bool(layers) and not strays
        right = right and (name != "all" or "cuda_graphs" not in options or recorded.count > 0)
        right = right and (
            name != "half" or min(ops.get((True, args.device), 0), ops.get((False, "CPU:0"), 0)) > 0
        )
        wrong += not right
        told = f"{', '.join(dict.fromkeys(texts))}, NMSE {error:.1e}, {on_device / 2**20:.1f} MiB there, {recorded.count} runs recorded, ops {summary(ops)}"
        sys.stdout.write(f"{'ok' if right else 'WRONG':6} {name:5} {told}\n")
    return 1 if wrong else 0


class Recorded(logging.Handler):
    """Counts the runs that ONNX Runtime records as CUDA graphs, and tells why others are not."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("recorded a run")
        sys.stdout.write(f"{record.getMessage()}\n")


def ops_by_place(llm: LLM, layers: range) -> dict[tuple[bool, str], int]:
    """The ops of a prompt, by whether their layer lies on the device, and by the device that they ran on."""
    with llm.backend.profiling() as runs:
        llm.logits(PROMPT)
    found: dict[tuple[bool, str], int] = {}
    for run in runs:
        for timing in run.timings:
            for layer in (run.graph.nodes[index].placement.layer for index in timing.nodes):
                if layer is not None:
                    key = layer in layers, timing.device
                    found[key] = found.get(key, 0) + 1
    return found


def summary(ops: dict[tuple[bool, str], int]) -> str:
    return ", ".join(
        f"{count} of layers {'there' if there else 'here'} on {device}"
        for (there, device), count in sorted(ops.items())
    )


if __name__ == "__main__":
    sys.exit(main())
