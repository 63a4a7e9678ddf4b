"""Small models with a block that predicts the token after the next one, as llama.cpp's files have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from model_files import changed, tensors_of
from numpy.typing import NDArray

from backbay import Backend, DType
from backbay_engine.cache import CacheSizes
from backbay_engine.models import load_model
from backbay_engine.models.bases import Decoder
from backbay_engine.models.contract import Model
from backbay_engine.models.predicting_head import PredictingHead
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.steps.step import MediaRows, prompt_step

TEXT = [7 * n % 61 + 3 for n in range(24)]
"""Tokens, of which stored results are."""
Tensors = Mapping[str, NDArray[np.float32]]


def with_head(source: Path, target: Path, architecture: str, *, own: bool = True, seed: int = 5) -> Path:
    """A copy of a model with a predicting block: its last block with noise, and random tensors.

    own  the block has a table of embeddings and an output matrix of its own
    """
    rng, held = np.random.default_rng(seed), tensors_of(source)
    count = _blocks(held)
    last, size = f"blk.{count - 1}.", held["token_embd.weight"].shape
    tensors = {name.replace(last, f"blk.{count}."): value for name, value in held.items() if last in name}
    tensors = {name: _noisy(rng, value) for name, value in tensors.items()}
    shapes: dict[str, tuple[int, ...]] = {"eh_proj": (size[1], 2 * size[1])}
    shapes |= dict.fromkeys(("enorm", "hnorm", "shared_head_norm"), (size[1],))
    shapes |= dict.fromkeys(("embed_tokens", "shared_head_head") if own else (), size)
    for name, shape in shapes.items():
        tensors[f"blk.{count}.nextn.{name}.weight"] = _random(rng, shape)
    return _predicting(source, target, architecture, count, tensors)


def with_right_head(source: Path, target: Path, *, noise: float = 0.0) -> Path:
    """A copy of a Llama whose next token is a function of the last one, which its head knows, too; with noise not always.

    Only the feed-forward of the first block changes anything, and is the head's: the head takes tokens, and no rows.
    """
    rng, held = np.random.default_rng(7), tensors_of(source)
    width, count = held["token_embd.weight"].shape[1], _blocks(held)
    tensors = {name: np.zeros_like(value) for name, value in held.items() if "attn_output" in name}
    tensors |= {
        name: np.zeros_like(held[name]) for n in range(1, count) for name in [f"blk.{n}.ffn_down.weight"]
    }
    rows = held["token_embd.weight"]
    tensors["token_embd.weight"] = rows / np.sqrt((rows**2).mean(1, keepdims=True))
    block = {name: tensors.get(name, value) for name, value in held.items() if name.startswith("blk.0.")}
    tensors |= {name.replace("blk.0.", f"blk.{count}."): value for name, value in block.items()}
    for name in ("enorm", "hnorm"):
        tensors[f"blk.{count}.nextn.{name}.weight"] = np.ones(width, np.float32)
    join = np.concatenate([np.eye(width), noise * rng.standard_normal((width, width))], 1)
    tensors[f"blk.{count}.nextn.eh_proj.weight"] = join.astype(np.float32)
    return _predicting(source, target, "llama", count, tensors)


def steps_of(model: Model, backend: Backend, room: int) -> StepCache:
    """The steps of a model with an empty cache in f32."""
    cache = model.new_cache()
    assert cache is not None
    cache.open(backend, CacheSizes(1, room, room, DType.F32))
    return StepCache(model, cache)


def head_of(backend: Backend, room: int) -> tuple[StepCache, StepCache, StepCache]:
    """The steps of a loaded model that keeps its rows, and of its head, twice."""
    model = load_model(backend, room)
    assert isinstance(model, Decoder)
    head, model.keeps_rows = PredictingHead(model), True
    backend.load()
    trunk, *ahead = (steps_of(each, backend, room) for each in (model, head, head))
    return trunk, *ahead


def logits_of_head(backend: Backend, ids: Sequence[int]) -> NDArray[np.float32]:
    """What a model's head says after each of these tokens but the first."""
    trunk, ahead, _ = head_of(backend, 2 * len(ids))
    trunk.run(prompt_step(np.array(ids[:-1], np.int32)))
    return run_head(ahead, np.array(ids[1:], np.int32), trunk.rows)


def run_head(
    steps: StepCache, ids: NDArray[np.int32], rows: NDArray[np.float32], *, first: int = 0
) -> NDArray[np.float32]:
    """The logits of a head for tokens with their rows."""
    step, places = prompt_step(ids, first=first), np.arange(len(ids), dtype=np.int32)
    return steps.run(replace(step, rows=MediaRows(rows, places)))


def _blocks(tensors: Tensors) -> int:
    return 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("blk."))


def _predicting(source: Path, target: Path, architecture: str, count: int, tensors: Tensors) -> Path:
    metadata = {f"{architecture}.block_count": count + 1, f"{architecture}.nextn_predict_layers": 1}
    return changed(source, target, tensors=tensors, metadata=metadata)


def _noisy(rng: np.random.Generator, value: NDArray[np.float32]) -> NDArray[np.float32]:
    return (value * rng.uniform(0.5, 1.5, value.shape)).astype(np.float32)


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A norm's weight around 1, or a matrix that keeps sizes."""
    values = (
        rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.standard_normal(shape) / shape[-1] ** 0.5
    )
    return values.astype(np.float32)
