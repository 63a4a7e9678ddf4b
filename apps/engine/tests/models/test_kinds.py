"""Each kind of model agrees with transformers on every backend, over cut prompts, parallel sequences and reused prefixes.

The files and the answers were made by `lab/engine/compare_kinds --store`.
"""

from __future__ import annotations

import numpy as np
import pytest
from model_files import KIND_NAMES, KINDS, unpacked
from model_scripts import CAPACITY, answers, nmse

import backbay
from backbay import DType
from backbay_engine.models import load_model

BACKENDS = sorted(backbay.backends())


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", KIND_NAMES)
@pytest.mark.few(81)
def test_each_kind_agrees_with_transformers(tmp_path, name, backend_name):
    path = unpacked(name, tmp_path)
    with backbay.open(path, backend=backend_name) as backend, np.load(KINDS / f"{name}.npz") as expected:
        model = load_model(backend, CAPACITY)
        backend.load()
        found = {
            script: nmse(answers(backend, model, script, DType.F32), expected[script]) for script in expected
        }
    assert max(found.values()) < 2e-5, found
