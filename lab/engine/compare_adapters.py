"""Compares adapters with PEFT: small random models of transformers, each with two random adapters.

    python lab/engine/compare_adapters.py --converter ~/llama.cpp
    python lab/engine/compare_adapters.py --converter ~/llama.cpp --kinds llama qwen3moe --backends ggml

Needs torch, transformers, peft and the sources of llama.cpp, whose converters write the model and the adapters in GGUF.
The kinds are those of compare_kinds. Both adapters are read as PEFT saves them, and from the converter's files. The
numbers are mean square errors of logits over the mean square of PEFT's, the largest of the choices of adapters; beside
them stands the error without adapters.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import peft
import torch
from numpy.typing import NDArray
from peft.tuners.lora import LoraLayer
from transformers.pytorch_utils import Conv1D

TOOL = Path(__file__).resolve().parent
sys.path[:0] = [str(TOOL / "compare_kinds"), str(TOOL), str(TOOL.parents[1] / "apps/engine/tests")]

import decoders  # noqa: E402
import mixtures  # noqa: E402
import recurrent  # noqa: E402
from files import convert  # noqa: E402
from kind import Kind, make  # noqa: E402

from backbay_engine import load  # noqa: E402

KINDS: dict[str, Kind] = {**decoders.KINDS, **mixtures.KINDS, **recurrent.KINDS}
IDS = [5, 9, 33, 2, 60, 17, 17, 40, 21, 1, 8, 50]  # longer than the shortest context of a kind
CHOICES: dict[str, dict[str, float]] = {
    "first": {"first": 1.0},
    "half of first": {"first": 0.5},
    "second": {"second": 1.0},
    "both": {"first": 1.0, "second": 0.5},
    "stabilized": {"stabilized": 1.0},
}
CONFIGS = {
    "first": {"r": 4, "lora_alpha": 8},
    "second": {"r": 2, "lora_alpha": 3},
    "stabilized": {"r": 8, "lora_alpha": 4, "use_rslora": True},
}
CONTEXT = 64
TURNED = ("gpt2",)  # modules that hold weights the other way round; the converter turns factors, too
CONVERTED = "first", "second"  # the converter does not heed use_rslora


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    parser.add_argument("--kinds", nargs="+", default=["llama", "qwen3moe", "gemma2", "phi3-long", "gpt2"])
    parser.add_argument("--backends", nargs="+", default=["cpu_ref", "ggml", "onnx"])
    parser.add_argument("--limit", type=float, default=1e-3)
    args = parser.parse_args()
    failed = False
    for name in args.kinds:
        with tempfile.TemporaryDirectory() as folder:
            for what, error, plain in compare(name, Path(folder), args):
                failed = failed or not error < min(args.limit, plain)
                print(f"{name:12} {what:44} {error:9.1e}   without adapters {plain:8.1e}", flush=True)
    sys.exit(failed)


def compare(name: str, folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """What was compared, its largest error, and the error without adapters."""
    kind = KINDS[name]
    make(kind, folder / "model")
    torch.manual_seed(1)
    expected = of_peft(kind, folder)
    model = convert(folder / "model", folder / "model.gguf", args.converter, kind)
    folders = {each: folder / each for each in CONFIGS}
    sources = {"PEFT's folders": folders}
    if name not in TURNED:
        sources["the converter's files"] = {
            each: converted(folders[each], folder / "model", args.converter) for each in CONVERTED
        }
    for backend in args.backends:
        for told, adapters in sources.items():
            for at in (model, folder / "model"):
                what = f"{backend}, {told}, {'a folder' if at.is_dir() else 'a file'}"
                try:
                    yield what, *errors(at, backend, adapters, expected)
                except Exception:
                    traceback.print_exc()
                    yield what, np.inf, np.inf


def errors(
    model: Path, backend: str, adapters: Mapping[str, Path], expected: Mapping[str, NDArray[np.float32]]
) -> tuple[float, float]:
    with load(model, backend, context=CONTEXT, adapters=adapters, kv_dtype="f32") as llm:
        own = {choice: scales for choice, scales in CHOICES.items() if scales.keys() <= adapters.keys()}
        found = {choice: llm.logits(IDS, adapter=scales) for choice, scales in own.items()}
        plain = llm.logits(IDS)
    return (
        max(nmse(each, expected[choice]) for choice, each in found.items()),
        min(nmse(plain, wanted) for wanted in expected.values()),
    )


def nmse(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    return float(((found - wanted) ** 2).mean() / (wanted**2).mean())


def of_peft(kind: Kind, folder: Path) -> dict[str, NDArray[np.float32]]:
    """The logits of each choice; the adapters are saved into the folder."""
    whole = copy.deepcopy(kind.torch)
    modules = {
        name.rpartition(".")[2]
        for name, module in whole.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)  # today's experts are parameters, and no modules
    }
    configs = {
        name: peft.LoraConfig(**own, target_modules=sorted(modules - {"lm_head"}))
        for name, own in CONFIGS.items()
    }
    made = peft.get_peft_model(whole, configs["first"], "first")
    for each in [*configs][1:]:
        made.add_adapter(each, configs[each])
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.5 * weight.shape[-1] ** -0.5)
    made.save_pretrained(folder)
    return {choice: logits(made, scales) for choice, scales in CHOICES.items()}


@torch.no_grad()
def logits(model: peft.PeftModel, scales: Mapping[str, float]) -> NDArray[np.float32]:
    model.base_model.set_adapter([*scales])
    layers = [layer for layer in model.modules() if isinstance(layer, LoraLayer)]
    for layer in layers:
        for adapter, scale in scales.items():
            layer.set_scale(adapter, scale)
    return np.asarray(model(torch.tensor([IDS])).logits[0].float().numpy())


def converted(adapter: Path, base: Path, converter: Path) -> Path:
    """The file that llama.cpp's converter makes of an adapter's folder."""
    target = adapter.with_suffix(".gguf")
    script = converter / "convert_lora_to_gguf.py"
    command = [sys.executable, script, "--base", base, "--outfile", target, adapter]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return target


if __name__ == "__main__":
    main()
