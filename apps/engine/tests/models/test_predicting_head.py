"""The block of a file that predicts the token after the next one: its logits are those of transformers' layers.

transformers leaves such blocks out; lab/engine/predicting_folders.py makes heads of its layers, in the order of llama.cpp and
vLLM, and folders and files with them. vLLM leaves out the embedding at the first position, and lets GLM's head go on from vectors
before the last norm.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import KINDS, changed, tensors_of, unpacked
from model_scripts import nmse
from predicting_models import TEXT, head_of, run_head

import backbay
from backbay import ModelFileError
from backbay_engine import RequestError
from backbay_engine.models import load_model
from backbay_engine.models.bases import Decoder
from backbay_engine.models.predicting_head import PredictingHead
from backbay_engine.steps.step import prompt_step

ROOM = 32


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("glm4moe-mtp", tmp_path_factory.mktemp("glm"))


@pytest.mark.parametrize("backend_name", sorted(backbay.backends()))
@pytest.mark.parametrize("name", sorted(path.stem for path in KINDS.glob("*-mtp.npy")))
def test_the_logits_of_a_head_are_those_of_the_layers_of_transformers(
    name: str, backend_name: str, tmp_path: Path
) -> None:
    """Of a folder, too, whose tensors are the file's: test_folders.py. It goes on from its own vectors as from the model's."""
    path, ids = unpacked(name, tmp_path), np.array(TEXT, np.int32)
    with backbay.open(path, backend=backend_name) as backend:
        trunk, ahead, again = head_of(backend, ROOM)
        logits, output = trunk.run(prompt_step(ids[:-1])), tensors_of(path)["output.weight"]
        rows = trunk.rows
        assert np.allclose(rows @ output.T, logits, atol=1e-3)  # the vectors before the output matrix
        found = run_head(ahead, ids[1:], rows)
        assert nmse(found, np.load(KINDS / f"{name}.npy").astype(np.float32)) < 1e-5  # stored in f16
        own = ahead.rows[-1:]
        further = run_head(ahead, ids[:1], own, first=len(ids) - 1)  # any token: a guess of the head
        whole = run_head(again, np.append(ids[1:], ids[0]), np.concatenate([rows, own]))
        assert further[0] == pytest.approx(whole[-1], abs=2e-3)


@pytest.mark.parametrize(
    ("metadata", "tensors", "error", "told"),
    [
        ({"glm4moe.nextn_predict_layers": 0}, {}, RequestError, "a key glm4moe.nextn_predict_layers above 0"),
        ({}, {"eh_proj": None}, RequestError, "a tensor blk.3.nextn.eh_proj.weight"),
        ({}, {"enorm": None}, ModelFileError, r"the tensors blk\.3\.nextn\.enorm\.weight \[32\]"),
    ],
)
def test_a_file_without_a_head_is_refused(
    glm: Path, tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], error: Any, told: str
) -> None:
    left_out = {f"blk.3.nextn.{name}.weight": value for name, value in tensors.items()}
    path = changed(glm, tmp_path / "m.gguf", tensors=left_out, metadata=metadata)
    with backbay.open(path, backend="cpu_ref") as backend:
        model = load_model(backend, ROOM)
        assert isinstance(model, Decoder)
        with pytest.raises(error, match=told):
            PredictingHead(model)


def test_a_predicting_block_that_nobody_uses_is_no_reason_to_warn(
    glm: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with backbay.open(glm, backend="cpu_ref") as backend:
        load_model(backend, ROOM)
    assert not caplog.records
