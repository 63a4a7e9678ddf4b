"""Compares caches of each dtype with f32: what a rounded cache changes in the logits.

    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_caches.py
    python lab/engine/compare_caches.py model.gguf --prompts "sort 5 2 9 =" --backends ggml

The numbers are mean square errors of all logits of a prompt, over the mean square of those with a cache in f32, on the
same backend: of keys as they are, rotated, and rotated without their mean. Without a model, small random ones are
written: Llamas with heads of 64, in whose keys one feature has a bias, as in Qwen2, of so many times the size of the
others. The feature is in the pair that rotates the slowest, or the fastest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

import backbay
from backbay_engine import load
from backbay_engine.cache.cells import storage
from backbay_engine.cache.cells.rotation import KeyRotation

DTYPES = ("f16", "q8_0", "q4_0")
QUANTIZED = frozenset({backbay.DType.Q8_0, backbay.DType.Q4_0})
OUTLIERS = (0, 5, 10, 25, 50, 100)  # times the size of a feature
TOKENS, HEAD, SIZE = 200, 64, 0.5  # SIZE: of the other features of a key


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--backends", nargs="+", default=["cpu_ref", "ggml"])
    parser.add_argument("--prompts", nargs="+", help=f"by default {TOKENS} random tokens, --seeds times")
    parser.add_argument("--seeds", type=int, default=3, help="random prompts")
    args = parser.parse_args()
    print(f"{'':36}{'dtype':>8}{'as it is':>10}{'rotated':>10}{'centred':>10}{'shares':>16}")
    with tempfile.TemporaryDirectory() as folder:
        for name, path in [(path.name, path) for path in args.models] or random_models(Path(folder)):
            for backend in args.backends:
                for dtype in DTYPES:
                    compare(f"{name}, {backend}", path, backend, dtype, args)


def compare(what: str, path: Path, backend: str, dtype: str, args: argparse.Namespace) -> None:
    exact = all_logits(path, backend, "f32", args)
    with patch.object(storage, "ROTATED", frozenset()):
        plain = nmse(all_logits(path, backend, dtype, args), exact)
    with patch.object(storage, "ROTATED", QUANTIZED):
        centred = nmse(all_logits(path, backend, dtype, args), exact)
        with patch.object(KeyRotation, "centre", lambda self, mean: None):
            rotated = nmse(all_logits(path, backend, dtype, args), exact)
    shares = f"{rotated / plain:8.2f}{centred / plain:8.2f}"
    print(f"{what:36}{dtype:>8}{plain:10.1e}{rotated:10.1e}{centred:10.1e}{shares}", flush=True)


def all_logits(path: Path, backend: str, dtype: str, args: argparse.Namespace) -> NDArray[np.float32]:
    """The logits of all prompts, one after the other."""
    with load(path, backend, kv_dtype=dtype, context=TOKENS + 8, num_threads=1) as llm:
        prompts: list[Any] = args.prompts
        if prompts is None:
            seeds = map(np.random.default_rng, range(args.seeds))
            prompts = [rng.integers(1, min(llm.vocabulary_size, 250), TOKENS).tolist() for rng in seeds]
        return np.concatenate([llm.logits(prompt) for prompt in prompts])


def nmse(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def random_models(folder: Path) -> Iterator[tuple[str, Path]]:
    from small_llama import write_small_llama

    for times in OUTLIERS:
        for pair, feature in (("slow", HEAD - 1), ("fast", 0)):
            path = folder / f"{times} {pair}.gguf"
            outlier = feature, float(SIZE * times)
            yield f"{times} times, {pair}", write_small_llama(path, head=HEAD, key_outlier=outlier)


if __name__ == "__main__":
    main()
