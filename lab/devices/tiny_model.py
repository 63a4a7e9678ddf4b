"""The tiny model with all, half and none of its layers on a device, beside the NumPy reference.

    python lab/devices/tiny_model.py onnx WebGPU:0 --option provider=webgpu --whole

With --whole the backend runs a model on one device: half of the layers must be refused.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

from backbay import BackendParams, GPULayers, GPULayersList, OptionError
from backbay_engine import load

MODEL = Path(__file__).parents[2] / "examples" / "models" / "backbay-tiny-f16.gguf"
PROMPT, ANSWER = "sum 417 268 =", "685"
CLOSE = 1e-4  # NMSE of logits, beside the reference


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("device")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--whole", action="store_true")
    args = parser.parse_args()
    options = dict(option.split("=", 1) for option in args.option)
    with load(MODEL, backend="cpu_ref") as reference:
        blocks, wanted = reference.backend.blocks.count, reference.logits(PROMPT)
    wrong = 0
    for name, count in (("all", blocks + 1), ("half", blocks // 2), ("none", 0)):
        placed = GPULayersList([GPULayers(args.device, range(count))] if count else [])
        refused = args.whole and name == "half"
        try:
            with load(
                MODEL,
                backend=args.backend,
                params=BackendParams(gpu_layers=placed, options=options if count else {}),
            ) as llm:
                error = np.mean((llm.logits(PROMPT) - wanted) ** 2) / np.mean(wanted**2)
                answer = llm.generate(PROMPT, max_tokens=8, temperature=0).text.strip()
                on_device = sum(gpu.total() for gpu in llm.memory().gpus)
            right = not refused and answer == ANSWER and error < CLOSE and bool(on_device) == bool(count)
            said = f"{answer}, NMSE {error:.1e}, {on_device / 2**20:.1f} MiB there"
        except OptionError as refusal:
            right, said = refused, f"refused: {refusal}"
        wrong += not right
        sys.stdout.write(f"{'ok' if right else 'WRONG':6} {name:5} {said}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
