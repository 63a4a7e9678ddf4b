"""The logits of every kind of model on a device, beside those of transformers, from the files of the engine's tests.

    python lab/devices/architectures.py ggml CUDA:0

Errors are NMSE, of caches of f32. A kind beyond LIMIT is marked; kinds that stand in --done are left out. With --half, the
first half of the layers is on the CPU.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

import backbay
from backbay import BackendParams, DType, GPULayers, GPULayersList
from backbay_engine.models import load_model

TESTS = Path(__file__).parents[2] / "apps" / "engine" / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "inputs")]

from model_files import DATA, KIND_NAMES, KINDS, NAMES, changed, unpacked  # noqa: E402
from model_scripts import CAPACITY, answers, nmse  # noqa: E402

LIMIT = 1e-3  # operands of products may be rounded to f16
FILES = [*((name, DATA) for name in NAMES), *((name, KINDS) for name in KIND_NAMES)]


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("backend")
    parser.add_argument("device")
    parser.add_argument("--option", action="append", default=[])
    parser.add_argument("--half", action="store_true", help="of the layers, the last ones, are on the device")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument(
        "--done", type=Path, help="a file that keeps the results, to go on after an interruption"
    )
    parser.add_argument("--time-limit", type=float, default=np.inf, help="seconds")
    args = parser.parse_args()
    kept = args.done.read_text().splitlines() if args.done and args.done.exists() else []
    done, begun = {line.split()[1] for line in kept}, time.monotonic()
    for name, folder in FILES:
        if name in done or (args.kinds and name not in args.kinds):
            continue
        if time.monotonic() - begun > args.time_limit:
            return 124
        kept.append(_line(args, name, folder))
        sys.stdout.write(f"{kept[-1]}\n")
        sys.stdout.flush()
        if args.done:
            args.done.write_text("\n".join(kept) + "\n")
    wrong = [line for line in kept if not line.startswith("ok")]
    sys.stdout.write(f"{len(kept)} kinds, {len(wrong)} wrong\n")
    return 1 if wrong else 0


def _line(args: Namespace, name: str, folder: Path) -> str:
    try:
        error = _error(args, name, folder)
    except Exception as failure:
        return f"FAILED {name} {type(failure).__name__}: {' '.join(str(failure).split())[:200]}"
    return f"{'ok' if error < LIMIT else 'WRONG':6} {name} {error:.1e}"


def _error(args: Namespace, name: str, folder: Path) -> float:
    """The largest error of a kind's scripts, with all layers on the device, or half of them."""
    with tempfile.TemporaryDirectory() as aside:
        path = unpacked(name, Path(aside)) if folder is KINDS else changed(name, Path(aside) / "f32.gguf")
        with backbay.open(path, backend="cpu_ref") as first:
            count = first.blocks.count + 1
        params = BackendParams(
            gpu_layers=GPULayersList([GPULayers(args.device, range(count // 2 if args.half else 0, count))]),
            options=dict(each.split("=", 1) for each in args.option),
        )
        with (
            backbay.open(path, backend=args.backend, params=params) as backend,
            np.load(folder / f"{name}.npz") as expected,
        ):
            model = load_model(backend, CAPACITY)
            backend.load()
            return max(
                nmse(answers(backend, model, script, DType.F32), expected[script]) for script in expected
            )


if __name__ == "__main__":
    sys.exit(main())
