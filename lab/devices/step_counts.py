"""The copies, runs and waits of one decode step on a device, for the tiny model or another one.

python lab/devices/step_counts.py onnx WebGPU:0 --option provider=webgpu
python lab/devices/step_counts.py ggml Vulkan:0
"""

from __future__ import annotations

import importlib
import sys
from argparse import ArgumentParser
from pathlib import Path

from backbay import BackendParams, GPULayers, GPULayersList
from backbay_engine import load

MODEL = Path(__file__).parents[2] / "examples" / "models" / "backbay-tiny-f16.gguf"


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("backend", choices=["ggml", "onnx"])
    parser.add_argument("device")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--model", type=Path, default=MODEL)
    args = parser.parse_args()
    options = dict(option.split("=", 1) for option in args.option)
    counts = importlib.import_module(f"{args.backend}_step_counts").StepCounts()
    with load(args.model, backend="cpu_ref") as reference:
        count = reference.backend.blocks.count + 1
    for name, layers in (("all layers there", range(count)), ("half of them", range(count // 2, count))):
        params = BackendParams(gpu_layers=GPULayersList([GPULayers(args.device, layers)]), options=options)
        with load(args.model, backend=args.backend, params=params) as llm:
            with counts.watch(llm):
                tokens = len(llm.generate("sum 417 268 =", max_tokens=3, temperature=0).tokens)
            sys.stdout.write(f"{name}: a prompt and {tokens} tokens\n")
            for line in counts.lines(llm):
                sys.stdout.write(f"    {line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
