"""Latent attention in its two forms: absorbed, over latent vectors, and plain, over keys and values of all heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import KINDS, changed, tensors_of, unpacked
from model_scripts import CAPACITY, answers, nmse

import backbay
from backbay import DType
from backbay_engine.cache import CacheSizes
from backbay_engine.models import load_model
from backbay_engine.models.keys import LATENT, ROTATED
from backbay_engine.runner.traced_steps import StepCache
from backbay_engine.steps.step import prompt_step


def plain(source: Path, target: Path) -> Path:
    """The file as older converters wrote it: attn_kv_b, and the lengths of heads under the usual keys."""
    tensors: dict[str, Any] = {}
    for name, keys in tensors_of(source).items():
        if name.endswith("attn_k_b.weight"):
            values = tensors_of(source)[name.replace("attn_k_b", "attn_v_b")]
            both = np.concatenate([keys.transpose(0, 2, 1), values], axis=1)
            tensors[name.replace("attn_k_b", "attn_kv_b")] = both.reshape(-1, both.shape[-1])
            tensors |= {name: None, name.replace("attn_k_b", "attn_v_b"): None}
    lengths = {"key_length": 12, "value_length": 12, "key_length_mla": None, "value_length_mla": None}
    metadata: dict[str, Any] = {f"deepseek2.attention.{key}": value for key, value in lengths.items()}
    metadata["deepseek2.attention.head_count_kv"] = 4
    return changed(source, target, tensors=tensors, metadata=metadata)


@pytest.mark.parametrize("backend_name", sorted(backbay.backends()))
@pytest.mark.parametrize("name", ["deepseek3-yarn", "deepseek2-lite"])
def test_the_plain_form_agrees_with_the_absorbed_one(tmp_path, name, backend_name):
    path = plain(unpacked(name, tmp_path), tmp_path / "plain.gguf")
    with backbay.open(path, backend=backend_name) as backend, np.load(KINDS / f"{name}.npz") as expected:
        model = load_model(backend, CAPACITY)
        backend.load()
        for script in expected:
            assert nmse(answers(backend, model, script, DType.F32), expected[script]) < 2e-5


@pytest.mark.parametrize("backend_name", sorted(backbay.backends()))
def test_latent_vectors_are_kept_once_as_ends_of_keys_and_as_values(tmp_path, backend_name):
    with backbay.open(unpacked("deepseek2-lite", tmp_path), backend=backend_name) as backend:
        model = load_model(backend, CAPACITY)
        backend.load()
        cache = model.new_cache()
        cache.open(backend, CacheSizes(1, CAPACITY, CAPACITY, DType.F32))
        before = backend.memory().total()
        steps = StepCache(model, cache)
        steps.run(prompt_step(np.arange(5, dtype=np.int32)))
        steps.close()
        each = 4 * (LATENT.of(backend.config) + ROTATED.of(backend.config))
        held = backend.memory().total() - before
        assert held == len(model.blocks) * cache.storage.cells * each
        cache.close()
