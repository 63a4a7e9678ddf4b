"""Every architecture says what transformers says, on every backend: prompts, steps, sequences side by side, shifts.

The files and the answers were made by tests/tools/agree_with_torch.py.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from model_scripts import answers, nmse

import backbay
from backbay import DType
from backbay_engine.models import load_model

DATA = Path(__file__).parent / "data" / "models"
NAMES = sorted(path.stem for path in DATA.glob("*.gguf"))
BACKENDS = sorted(backbay.backends())


def widened(source: Path, target: Path) -> Path:
    """The same model with all its weights in f32."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            kind, *element = field.types
            writer.add_key_value(
                field.name, field.contents(), kind, sub_type=element[-1] if element else None
            )
    for tensor in reader.tensors:
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(numbers, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def errors(path: Path, backend_name: str, name: str, dtype: DType) -> dict[str, float]:
    with backbay.open(path, backend=backend_name) as backend, np.load(DATA / f"{name}.npz") as expected:
        model = load_model(backend)
        backend.load()
        return {script: nmse(answers(backend, model, script, dtype), expected[script]) for script in expected}


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_in_f32_agree_with_transformers(tmp_path, name, backend_name):
    path = widened(DATA / f"{name}.gguf", tmp_path / "f32.gguf")
    found = errors(path, backend_name, name, DType.F32)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("backend_name", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_the_file_as_it_is_agree_with_transformers(name, backend_name):
    found = errors(DATA / f"{name}.gguf", backend_name, name, DType.F16)
    assert max(found.values()) < 1e-3, found
