"""Compares logits with llama.cpp on the same files; the reference backend is the truth for both.

    python tests/tools/agree_with_llama.py
    python tests/tools/agree_with_llama.py --quantized q4_k_s q6_k --json agreement.json
    python tests/tools/agree_with_llama.py --only-mixes q4_k_m q3_k_m

Needs llama-cpp-python. The truth is cpu_ref: dequantized weights, sums in double precision. The other backends must be
at least as close to it as llama.cpp. The files are the models of the tests, one for each architecture, and a Llama with
random weights, wide enough for every quantized type. With --only-mixes, the files are wide models of each architecture,
made by transformers, with llama.cpp's mixes of tensor types; this needs torch and transformers too.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "apps" / "engine" / "tests"),
    str(ROOT / "lab" / "bench"),
    str(Path(__file__).parent),
]

import model_scripts as scripts  # noqa: E402
from llama_file import Shape, write_model  # noqa: E402
from llama_truth import LlamaCpp, quantize  # noqa: E402

import backbay  # noqa: E402
from backbay import DType  # noqa: E402
from backbay_engine.plugin import load_model  # noqa: E402

DATA = ROOT / "apps" / "engine" / "tests" / "data" / "models"
WIDE = Shape(layers=2, width=512, hidden=1024, heads=8, kv_heads=4, vocab=1024)
KINDS = tuple(
    "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q2_k q3_k_s q4_k_s q5_k_s q6_k iq4_nl iq4_xs iq3_s".split()  # noqa: SIM905
)
REFERENCE = "cpu_ref"
SLACK = 1.5  # times llama.cpp's error: room for sums in another order
FLOOR = 1e-9  # errors below this are only rounding


def ours(path: Path, backend_name: str) -> dict[str, np.ndarray]:
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        names = ["texts"] if path.stem.startswith("bert") else scripts.SCRIPTS
        return {name: scripts.answers(backend, model, name, DType.F32) for name in names}


def theirs(path: Path) -> dict[str, np.ndarray]:
    embeds = path.stem.startswith("bert")
    with LlamaCpp(path, "f32", embeds=embeds) as llama:
        if embeds:
            return {"texts": llama.embeddings(scripts.TEXTS)}
        return {name: llama.run_script(actions) for name, actions in scripts.SCRIPTS.items()}


def compare(name: str, path: Path, backends: list[str]) -> Iterator[dict[str, Any]]:
    """A row for each script: llama.cpp's error, and the backend's."""
    truth, llama = ours(path, REFERENCE), theirs(path)
    found = {backend: ours(path, backend) for backend in backends}
    for script, expected in truth.items():
        limit = max(FLOOR, SLACK * scripts.nmse(llama[script], expected))
        errors = {backend: scripts.nmse(found[backend][script], expected) for backend in backends}
        yield {
            "file": name,
            "script": script,
            "llama.cpp": scripts.nmse(llama[script], expected),
            **errors,
            "as close": all(error <= limit for error in errors.values()),
        }


def files(kinds: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Name and path of each file to compare."""
    for path in sorted(DATA.glob("*.gguf")):
        yield path.stem, path
    wide = folder / "wide.gguf"
    write_model(wide, WIDE, "f32")
    for kind in kinds:
        yield f"wide {kind}", wide if kind == "f32" else quantize(wide, folder / f"wide.{kind}.gguf", kind)


def mixed(kinds: list[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Models of each architecture with llama.cpp's mixes of tensor types."""
    from agree_with_torch import save
    from small_models import WIDE, make

    for name, small in WIDE.items():
        whole = save(name, small, make(small), folder, "f32")["f32"]
        for kind in kinds:
            yield f"{name} {kind}", quantize(whole, folder / f"{name}.{kind}.gguf", kind, pure=False)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    others = [name for name in sorted(backbay.backends()) if name != REFERENCE]
    parser.add_argument("--backends", nargs="+", default=others)
    parser.add_argument("--quantized", nargs="*", default=KINDS)
    parser.add_argument("--only-mixes", nargs="+", default=())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    columns = ["file", "script", "llama.cpp", *args.backends, "as close"]
    print("|", " | ".join(columns), "|")
    print("|" + "---|" * len(columns))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        make = mixed if args.only_mixes else files
        for name, path in make(args.only_mixes or args.quantized, Path(folder)):
            for row in compare(name, path, args.backends):
                rows.append(row)
                cells = (row[column] for column in columns)
                print("|", " | ".join(f"{c:.1e}" if isinstance(c, float) else str(c) for c in cells), "|")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["as close"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
