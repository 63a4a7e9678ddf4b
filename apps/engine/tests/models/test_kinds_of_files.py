"""The error for an unknown architecture names the kind of model that the file's tensors tell."""

from __future__ import annotations

import pytest
from model_files import KIND_NAMES, changed, unpacked

import backbay
from backbay import ModelFileError
from backbay_engine.models import architectures, load_model
from backbay_engine.models.registry import KINDS

ALIKE = {
    "deepseek3": "deepseek2",
    "gemma2": "gemma2",
    "olmo3": "olmo2",
    "cohere2": "command-r",
    "gpt2": "gpt2",
    "phi3": "phi3",
    "erniemoe": "glm4moe",
    "granitemoe": "qwen3moe",
    "mamba2": "mamba2",
    "nemotronh": "granitehybrid",
    "qwen3next": "qwen3next",
    "rwkv7": "rwkv7",
    "lfm2": "lfm2",
    "nomic-bert": "bert",
    "modern-bert": "modern-bert",
    "starcoder2": "starcoder2",
    "smollm3": "llama",
}


@pytest.mark.fault(
    "a file of an unknown architecture",
    "ModelFileError naming known ones, and the kind that its tensors tell",
)
@pytest.mark.parametrize(("name", "alike"), ALIKE.items())
def test_the_kind_of_an_unknown_architecture_is_named(tmp_path, name, alike):
    assert name in KIND_NAMES
    path = changed(unpacked(name, tmp_path), tmp_path / "unknown.gguf", architecture="unheard-of")
    told = pytest.raises(ModelFileError, match=f"its tensors are of the kind of '{alike}': ")
    with backbay.open(path, backend="cpu_ref") as backend, told:
        load_model(backend)


def test_a_file_that_tells_no_kind_names_none(tmp_path):
    tensors = dict.fromkeys(("blk.0.attn_norm.weight", "blk.1.attn_norm.weight"))
    path = changed(
        unpacked("llama", tmp_path), tmp_path / "u.gguf", tensors=tensors, architecture="unheard-of"
    )
    with backbay.open(path, backend="cpu_ref") as backend, pytest.raises(ModelFileError) as told:
        load_model(backend)
    assert "of the kind" not in str(told.value)


def test_each_kind_names_an_architecture_that_is_there():
    assert {kind.example for kind in KINDS} <= set(architectures())
