"""Compares logits with those of transformers: every architecture and script, on every installed backend.

    python tests/tools/agree_with_torch.py
    python tests/tools/agree_with_torch.py --models gemma3 gpt-oss --backends onnx --json agreement.json
    python tests/tools/agree_with_torch.py --fixtures apps/engine/tests/data/models

Needs torch and transformers. Models are random and small. The numbers are mean square errors over the mean square of
the results of transformers. --fixtures writes the expected results of the tests, which run without torch.
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
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "apps" / "engine" / "tests"), str(Path(__file__).parent)]

import model_scripts as scripts  # noqa: E402
import torch_truth  # noqa: E402
from hf_to_gguf import convert  # noqa: E402
from small_models import MODELS, Small, make  # noqa: E402

import backbay  # noqa: E402
from backbay import DType  # noqa: E402
from backbay_engine.plugin import load_model  # noqa: E402

LIMITS = {"f32": 1e-5, "f16": 1e-3}
FIXTURES = (
    "llama-llama3",
    "llama-yarn",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "gemma3",
    "gpt-oss",
    "bert-mean",
    "bert-cls",
)


def truths(small: Small, model: Any) -> dict[str, np.ndarray]:
    """The results of transformers by script."""
    if small.embeds:
        return {"texts": torch_truth.embeddings(model, scripts.TEXTS, small.metadata["pooling_type"])}
    return {script: torch_truth.run_script(model, actions) for script, actions in scripts.SCRIPTS.items()}


def save(name: str, small: Small, model: Any, folder: Path, *dtypes: str) -> dict[str, Path]:
    """The model's files, converted from the files that transformers saves."""
    model.save_pretrained(folder / name)
    paths = {dtype: folder / f"{name}.{dtype}.gguf" for dtype in dtypes}
    for dtype, path in paths.items():
        convert(folder / name, path, dtype, metadata=small.metadata)
    return paths


def compare(name: str, backends: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A result for each dtype, backend and script."""
    small = MODELS[name]
    model = make(small)
    expected = truths(small, model)
    for dtype, path in save(name, small, model, folder, *LIMITS).items():
        for backend_name in backends:
            with backbay.open(path, backend=backend_name) as backend:
                ours = load_model(backend)
                backend.load()
                for script, truth in expected.items():
                    found = scripts.answers(backend, ours, script, DType[dtype.upper()])
                    error = scripts.nmse(found, truth)
                    row = {"model": name, "dtype": dtype, "backend": backend_name, "script": script}
                    yield {**row, "nmse": error, "limit": LIMITS[dtype], "agrees": error < LIMITS[dtype]}


def show(rows: list[dict[str, Any]]) -> None:
    """Print a line for each model, dtype and backend."""
    print("| model | dtype | backend |", *(f"{script} |" for script in scripts.SCRIPTS))
    print("|---|---|---|" + "---|" * len(scripts.SCRIPTS))
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        mark = "" if row["agrees"] else " **no**"
        key = row["model"], row["dtype"], row["backend"]
        lines.setdefault(key, []).append(f"{row['nmse']:.1e}{mark}")
    for key, cells in lines.items():
        print("|", " | ".join([*key, *cells]), "|")


def write_fixtures(folder: Path) -> None:
    """Write files in f16, and the results of transformers for the f16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in FIXTURES:
            small = MODELS[name]
            model = make(small, rounded=True)
            made = save(name, small, model, Path(scratch), "f16")["f16"]
            made.replace(folder / f"{name}.gguf")
            truth = {script: found.astype(np.float16) for script, found in truths(small, model).items()}
            np.savez_compressed(folder / f"{name}.npz", **truth)
            print(name, (folder / f"{name}.gguf").stat().st_size + (folder / f"{name}.npz").stat().st_size)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--backends", nargs="+", default=sorted(backbay.backends()))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--fixtures", type=Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.fixtures:
        write_fixtures(args.fixtures)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in args.models for row in compare(name, args.backends, Path(folder))]
    show(rows)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
