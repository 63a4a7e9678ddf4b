"""Folders with a block that predicts further tokens: beside llama.cpp's converter, and the head beside transformers' layers.

    python lab/engine/predicting_folders.py --converter ~/llama.cpp
    python lab/engine/predicting_folders.py --converter ~/llama.cpp --store apps/engine/tests/data/kinds

transformers leaves such blocks out: here a block of a second model of its kind, with other weights, becomes the head's. The
numbers are mean square errors over the mean square of what these layers give, in f32.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["TQDM_DISABLE"] = "1"  # the converter's progress

import numpy as np
import torch
from safetensors.torch import load_file, save_file

TOOL = Path(__file__).resolve().parent
TESTS = TOOL.parents[1] / "apps/engine/tests"
sys.path[:0] = [str(TOOL), str(TOOL / "compare_kinds"), str(TESTS), str(TESTS / "inputs")]

import llama_converter  # noqa: E402
import mixtures  # noqa: E402
import recurrent  # noqa: E402
from files import write_vocabulary  # noqa: E402
from kind import Kind, make  # noqa: E402
from model_scripts import nmse  # noqa: E402
from packed_folders import store_folder  # noqa: E402
from predicting_models import TEXT, logits_of_head  # noqa: E402

import backbay  # noqa: E402
from backbay.discovery import open_model  # noqa: E402

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """How a family's checkpoints name a head.

    block    what stands before the names of the head's block, of so many blocks of the model
    parts    the names of the head's own tensors, by those of a model file
    centred  whether norms are stored as what they add to 1
    """

    block: str
    parts: dict[str, str]
    centred: bool = False


QWEN = Layout(
    "mtp.layers.0.",
    {
        "eh_proj": "mtp.fc",
        "enorm": "mtp.pre_fc_norm_embedding",
        "hnorm": "mtp.pre_fc_norm_hidden",
        "shared_head_norm": "mtp.norm",
    },
    centred=True,
)
GLM_PARTS = ("eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head")
GLM = Layout("model.layers.3.", {name.replace(".", "_"): f"model.layers.3.{name}" for name in GLM_PARTS})
MODELS: dict[str, tuple[Kind, Layout]] = {
    "qwen3next-mtp": (recurrent.KINDS["qwen3next"], QWEN),
    "qwen35-mtp": (recurrent.KINDS["qwen35"], QWEN),
    "glm4moe-mtp": (replace(mixtures.KINDS["glm4moe"], describe=None), GLM),
}


def make_folder(of: Kind, layout: Layout, folder: Path) -> Tensors:
    """Save a model with a head; gives the head's own tensors."""
    make(of, folder)
    make(replace(of, seed=1), folder / "other")
    tensors, other = load_file(folder / "model.safetensors"), load_file(folder / "other/model.safetensors")
    last = max(int(name.split(".")[2]) for name in tensors if name.startswith("model.layers."))
    here = f"model.layers.{last}."
    tensors |= {
        layout.block + name.removeprefix(here): each for name, each in other.items() if name.startswith(here)
    }
    own = own_tensors(layout, tensors["model.embed_tokens.weight"].shape)
    tensors |= {f"{layout.parts[name]}.weight": each for name, each in own.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps(config | {"num_nextn_predict_layers": 1, "mtp_num_hidden_layers": 1})
    )
    for path in (folder / "other").iterdir():
        path.unlink()
    (folder / "other").rmdir()
    return own


def own_tensors(layout: Layout, size: torch.Size) -> Tensors:
    """Of few values, so that packed files are small."""
    torch.manual_seed(2)
    width, found = size[1], Tensors()
    for name in layout.parts:
        shape = {"eh_proj": (width, 2 * width), "embed_tokens": size, "shared_head_head": size}.get(
            name, (width,)
        )
        numbers = torch.randint(-3, 4, shape).float()
        found[name] = (
            numbers / (2 * shape[-1] ** 0.5)
            if len(shape) > 1
            else (0 if layout.centred else 1) + numbers * 0.05
        )
    return found


def logits_of_layers(of: Kind, layout: Layout, own: Tensors, ids: torch.Tensor) -> torch.Tensor:
    """What the head says after each token but the first, by transformers' layers."""
    model, other = of.torch.model, replace(of, seed=1).torch
    norm = type(model.norm)(model.config.hidden_size, model.config.rms_norm_eps)

    def normed(name: str, x: torch.Tensor) -> torch.Tensor:
        norm.weight.data = own[name]
        return norm(x)

    with torch.inference_mode():
        hidden = model(ids[None]).last_hidden_state[:, :-1]
        table = own.get("embed_tokens", model.embed_tokens.weight)
        both = [normed("enorm", table[ids[None, 1:]]), normed("hnorm", hidden)]
        x = torch.cat(both, -1) @ own["eh_proj"].T
        count = x.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        positions = model.rotary_emb(x, torch.arange(count)[None])
        x = other.model.layers[-1](x, position_embeddings=positions, attention_mask=mask)
        x = x[0] if isinstance(x, tuple) else x
        return (normed("shared_head_norm", x) @ own.get("shared_head_head", of.torch.lm_head.weight).T)[0]


def differing(converted: Path, folder: Path) -> list[str]:
    """The tensors and keys of the converter's file that a folder has otherwise, or has beside them."""
    with open_model(converted) as theirs, open_model(folder) as ours:
        unequal = [
            name
            for name in theirs.tensors
            if name not in ours.tensors
            or not np.allclose(ours.data(name).view("<f4"), theirs.data(name).view("<f4"), rtol=2e-7, atol=0)
        ]
        keys = [
            key
            for key in theirs.metadata
            if key.endswith(("block_count", "nextn_predict_layers"))
            and theirs.metadata[key] != ours.metadata.get(key)
        ]
        return sorted({*ours.tensors} - {*theirs.tensors}) + unequal + keys


def results(name: str, folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    of, layout = MODELS[name]
    own = make_folder(of, layout, folder)

    def prepare(made: Any) -> None:
        made.set_vocab = lambda: write_vocabulary(made, json.loads((folder / "config.json").read_text()))

    converted = llama_converter.convert(
        folder, folder.with_suffix(".gguf"), args.converter, prepare, predicting=True
    )
    yield "unlike the converter's", ", ".join(differing(converted, folder)) or "nothing"
    wanted = logits_of_layers(of, layout, own, torch.tensor(TEXT)).numpy()
    for backend in sorted(backbay.backends()):
        for path in (converted, folder):
            with backbay.open(path, backend=backend) as opened:
                error = nmse(logits_of_head(opened, TEXT), wanted)
            yield f"{backend}, {'the folder' if path is folder else 'the file'}", f"{error:.1e}"
    if args.store:
        (args.store / f"{name}.gguf.xz").write_bytes(lzma.compress(converted.read_bytes(), preset=9))
        np.save(args.store / f"{name}.npy", wanted.astype(np.float16))
        store_folder(folder, args.store / f"{name}.hf.xz")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--converter", type=Path, required=True, help="the folder of llama.cpp's sources")
    parser.add_argument("--store", type=Path, help="write the packed files of the tests")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            for what, found in results(name, Path(scratch) / name, args):
                print(f"{name}: {what}: {found}", flush=True)


if __name__ == "__main__":
    main()
