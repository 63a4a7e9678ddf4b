"""Compares Llama 4's logits around a chunk's border at 8,192 with transformers: the chunk of files that do not say.

    python lab/engine/compare_kinds/chunk_borders.py --converter ~/llama.cpp

Needs torch, transformers and the sources of llama.cpp. A text of 8,292 random tokens goes through a small random model in
steps of 512; the numbers are the normalised mean square errors of 200 positions around the border.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "apps/engine/tests"))

from files import convert
from kind import make
from mixtures import KINDS
from model_scripts import nmse

import backbay
from backbay import DType
from backbay_engine.plugin import CacheSizes, StepCache, load_model, prompt_step

CHUNK, AROUND, STEP = 8192, 100, 512


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    parser.add_argument("--backends", nargs="+", default=["ggml"])
    args = parser.parse_args()
    length = {"attention_chunk_size": CHUNK, "floor_scale": CHUNK, "max_position_embeddings": 2 * CHUNK}
    kind = replace(KINDS["llama4"], config={**KINDS["llama4"].config, **length}, metadata={})
    ids = np.random.default_rng(0).integers(3, 60, CHUNK + AROUND).astype(np.int32)
    kind.torch.set_attn_implementation("sdpa")  # eager attention holds all scores
    with torch.no_grad():
        found = kind.torch(torch.from_numpy(ids[None].astype(np.int64)), logits_to_keep=2 * AROUND)
    wanted, agrees = found.logits[0].numpy(), True
    with tempfile.TemporaryDirectory() as scratch:
        make(kind, Path(scratch) / "hf")
        path = convert(Path(scratch) / "hf", Path(scratch) / "model.gguf", args.converter, kind)
        for name in args.backends:
            error = nmse(logits(path, name, ids)[-2 * AROUND :], wanted)
            agrees &= error < 1e-5
            print(f"{name}: {error:.1e}")
    return 0 if agrees else 1


def logits(path: Path, name: str, ids: np.ndarray) -> np.ndarray:
    """The logits of every position."""
    with backbay.open(path, backend=name) as backend:
        model = load_model(backend, 2 * CHUNK)
        backend.load()
        cache = model.new_cache()
        cache.open(backend, CacheSizes(1, capacity=CHUNK + AROUND, batch=STEP, dtype=DType.F32))
        steps = StepCache(model, cache)
        parts = (prompt_step(ids[first : first + STEP], first=first) for first in range(0, len(ids), STEP))
        return np.concatenate([steps.run(part) for part in parts])


if __name__ == "__main__":
    sys.exit(main())
