"""Encoders agree with transformers on every backend.

The files and the rows were made by `lab/engine/compare_vision --store`.
"""

from __future__ import annotations

import numpy as np
import pytest
from model_scripts import nmse
from vision_files import ENCODERS, opened, pictures, unpacked

import backbay

BACKENDS = sorted(backbay.backends())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.few(10)
def test_each_encoder_agrees_with_transformers(tmp_path, name, backend):
    encoder = opened(unpacked(name, tmp_path), backend)
    try:
        known = pictures(name)
        prepared = [encoder.family.prepare(rgb) for rgb, _ in known.values()]
        found = encoder.embed([*prepared, *prepared])  # those of one shape together
        for rows, (_, wanted) in zip(found, [*known.values()] * 2, strict=True):
            assert rows.shape == wanted.shape
            assert nmse(rows, wanted) < 1e-5
        for picture, (_, wanted) in zip(prepared, known.values(), strict=True):
            (rows,) = encoder.embed([picture])
            assert nmse(rows, wanted) < 1e-5
    finally:
        encoder.close()


def test_all_pictures_of_the_files_are_different():
    for name in ENCODERS:
        rows = [wanted.astype(np.float32) for _, wanted in pictures(name).values()]
        alike = [nmse(a, b) for a in rows for b in rows if a is not b and a.shape == b.shape]
        assert min(alike, default=1) > 0.01
