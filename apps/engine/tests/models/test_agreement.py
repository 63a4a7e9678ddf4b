"""Every architecture agrees with transformers on every backend: prompts, steps, parallel sequences, shifts.

The files and the answers were made by tests/tools/agree_with_torch.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from model_files import DATA, NAMES, changed, stored
from model_scripts import answers, nmse

import backbay
from backbay import DType
from backbay_engine.models import load_model

BACKENDS = sorted(backbay.backends())


def errors(path: Path, backend_name: str, name: str, dtype: DType) -> dict[str, float]:
    with backbay.open(path, backend=backend_name) as backend, np.load(DATA / f"{name}.npz") as expected:
        model = load_model(backend)
        backend.load()
        return {script: nmse(answers(backend, model, script, dtype), expected[script]) for script in expected}


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.few(10)
def test_logits_in_f32_agree_with_transformers(tmp_path, name, backend_name):
    found = errors(changed(name, tmp_path / "f32.gguf"), backend_name, name, DType.F32)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.few(10)
def test_logits_of_the_file_as_it_is_agree_with_transformers(name, backend_name):
    found = errors(stored(name), backend_name, name, DType.F16)
    assert max(found.values()) < 1e-3, found
