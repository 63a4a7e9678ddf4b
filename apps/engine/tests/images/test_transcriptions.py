"""Encoders that transformers lacks, against a NumPy transcription of the published code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from model_files import changed, tensors_of
from vision_files import opened, unpacked

import backbay
from backbay_engine.images.parts.towers import divided_fractions, stepped_fractions, stretched_places

SOURCE = Path(__file__).parents[4] / "lab" / "engine" / "compare_vision" / "transcriptions.py"
SPEC = importlib.util.spec_from_file_location("transcriptions", SOURCE)
assert SPEC is not None and SPEC.loader is not None
transcriptions = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(transcriptions)

ONE_PART, ONE_ROW, THREE_ROWS = (40, 50), (60, 150), (200, 230)
BACKENDS = sorted(backbay.backends())


def check(path, backend, sizes):
    encoder = opened(path, backend)
    try:
        for seed, size in enumerate(sizes):
            rgb = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
            picture = encoder.family.prepare(rgb)
            (rows,), wanted = encoder.embed([picture]), transcriptions.rows(path, picture.pixels, size)
            assert rows.shape == wanted.shape
            assert ((rows - wanted) ** 2).sum() <= 1e-5 * (wanted**2).sum(), size
    finally:
        encoder.close()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["minicpmv-projector", "ldp-projector", "ldpv2-projector"])
def test_rows_are_those_of_the_published_code(tmp_path, name, backend):
    check(unpacked(name, tmp_path), backend, (ONE_PART, ONE_ROW, THREE_ROWS))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.few(1)
def test_minicpmv_agrees_at_the_published_sizes(tmp_path, backend):
    """70 x 70 learned positions, 448 pixels, two heads; a picture of 25 x 40 patches, some on borders of positions."""
    small, rng = unpacked("minicpmv-projector", tmp_path), np.random.default_rng(0)
    narrow, wide = 48, 256
    tensors = {
        name: rng.standard_normal([wide if length == narrow else length for length in tensor.shape]) * 0.3
        for name, tensor in tensors_of(small).items()
        if name.startswith("resampler.") and name != "resampler.pos_embed_k"
    }
    tensors |= {"v.position_embd.weight": rng.standard_normal((70 * 70, 32)), "resampler.pos_embed_k": None}
    path = changed(small, tmp_path / "large.gguf", tensors=tensors, metadata={"clip.vision.image_size": 448})
    check(path, backend, [(200, 320)])


def test_the_rounding_of_each_reference_decides_between_learned_positions():
    for count in range(1, 200):
        published = transcriptions.buckets(count, 70)
        np.testing.assert_array_equal(stretched_places(70, 1, count, stepped_fractions), published)
    # Both made by PyTorch.
    assert stretched_places(70, 1, 25, stepped_fractions)[::5].tolist() == [0, 13, 27, 41, 55]
    assert stretched_places(70, 1, 100, divided_fractions)[::10].tolist() == [
        0,
        7,
        14,
        21,
        28,
        35,
        42,
        49,
        56,
        63,
    ]
