"""Compares logits with those of transformers and llama.cpp, on random configurations.

    python tests/tools/agree_on_random_models.py --seeds 0 200
    python tests/tools/agree_on_random_models.py --seeds 17 18 --backends ggml onnx --llama

Needs torch and transformers. --llama also compares with llama.cpp, if it accepts the file, and needs
llama-cpp-python. Prints the configurations that disagree, and their number. All weights are f32.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps" / "engine" / "tests"), str(Path(__file__).parent)]

import torch_truth  # noqa: E402
from agree_with_torch import save  # noqa: E402
from model_scripts import SCRIPTS, TEXTS, embeddings, nmse, run_script  # noqa: E402
from random_models import draw  # noqa: E402
from small_models import Small, make  # noqa: E402

import backbay  # noqa: E402
from backbay import DType  # noqa: E402
from backbay_engine.plugin import load_model  # noqa: E402

LIMIT = 1e-5
NAMES = ("prompt", "steps", "parallel", "shift")


def truth(small: Small, model: Any) -> tuple[str, Any, np.ndarray]:
    """A script's name, the script, and the results of transformers."""
    if small.embeds:
        texts = [*TEXTS, (5,)]
        return "texts", texts, torch_truth.embeddings(model, texts, small.metadata["pooling_type"])
    name = NAMES[small.seed // 9 % len(NAMES)]
    return name, SCRIPTS[name], torch_truth.run_script(model, SCRIPTS[name])


def ours(path: Path, backend_name: str, script: Sequence[Any]) -> np.ndarray:
    with backbay.open(path, backend=backend_name) as backend:
        model = load_model(backend)
        backend.load()
        if model.new_cache() is None:
            return embeddings(model, script)
        return run_script(backend, model, script, DType.F32)


def theirs(path: Path, small: Small, script: Sequence[Any]) -> np.ndarray | None:
    """The results of llama.cpp; None if it refuses the file."""
    from llama_truth import LlamaCpp

    try:
        with LlamaCpp(path, "f32", embeds=small.embeds) as llama:
            return llama.embeddings(script) if small.embeds else llama.run_script(script)
    except RuntimeError:
        return None


def compare(seed: int, backends: Sequence[str], llama: bool) -> Iterator[tuple[str, str, float]]:
    """Name of the backend or library, name of the script, and error relative to transformers."""
    small = draw(seed)
    model = make(small)
    name, script, expected = truth(small, model)
    with tempfile.TemporaryDirectory() as folder:
        path = save("model", small, model, Path(folder), "f32")["f32"]
        for backend_name in backends:
            yield backend_name, name, nmse(ours(path, backend_name, script), expected)
        found = theirs(path, small, script) if llama else None
        if found is not None:
            yield "llama.cpp", name, nmse(found, expected)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 100), metavar=("FROM", "TO"))
    parser.add_argument("--backends", nargs="+", default=["cpu_ref"])
    parser.add_argument("--llama", action="store_true")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    agreed, wrong = Counter[str](), Counter[str]()
    for seed in range(*args.seeds):
        try:
            rows = list(compare(seed, args.backends, args.llama))
        except Exception as error:  # reported like a disagreement, with the configuration
            rows = [(f"{type(error).__name__}: {error}", "", float("nan"))]
        for who, script, error in rows:
            (agreed if error < LIMIT else wrong)[who] += 1
            if not error < LIMIT:
                small = draw(seed)
                print(f"{seed} {small.kind} {script} {who}: {error:.1e} {json.dumps(small.config)}")
    for who in {**agreed, **wrong}:
        print(f"{who}: {agreed[who]} agree, {wrong[who]} do not")
    return 1 if any(who in wrong for who in args.backends) or sum(wrong.values()) > wrong["llama.cpp"] else 0


if __name__ == "__main__":
    sys.exit(main())
