"""The blocks of a model file, which memory reports and placements count as layers."""

import gguf
import numpy as np
import pytest

import backbay
import backbay.gguf
from backbay import BackendParams, ModelFileError


def write(path, *names, **keys):
    writer = gguf.GGUFWriter(path, "sees")
    for key, value in keys.items():
        writer.add_uint32(f"sees.{key}", value)
    for name in names:
        writer.add_tensor(name, np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


TEXT = ("token_embd.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight")
ENCODER = (
    "v.patch_embd.weight",
    "v.blk.0.ln1.weight",
    "v.blk.1.ln1.weight",
    "v.global.blk.0.ln1.weight",
    "mm.0.weight",
)


def layers(path, only=None):
    model = backbay.gguf.open(path, only)
    with backbay.open(model, "cpu_ref", BackendParams(alloc_memory=False)) as backend:
        assert backend.memory().total() == sum(info.nbytes for info in model.tensors.values())
        return {name: backend.placement_of(name).layer for name in model.tensors}


def test_an_encoder_of_its_own_has_its_blocks_as_layers(tmp_path):
    found = layers(write(tmp_path / "a.gguf", *ENCODER))
    assert found == dict(zip(ENCODER, (0, 0, 1, 2, 3), strict=True))


def test_beside_a_text_model_an_encoder_is_in_the_output_layer(tmp_path):
    found = layers(write(tmp_path / "a.gguf", *TEXT, *ENCODER, block_count=2))
    assert found == dict(zip((*TEXT, *ENCODER), (None, 0, 1, 2, *[2] * len(ENCODER)), strict=True))


def test_one_file_opens_as_two_models(tmp_path):
    path = write(tmp_path / "a.gguf", *TEXT, *ENCODER, block_count=2)
    assert list(layers(path, lambda name: name in ENCODER).values()) == [0, 0, 1, 2, 3]
    assert list(layers(path, lambda name: name in TEXT).values()) == [None, 0, 1, 2]


def test_an_open_model_file_is_closed_by_its_backend(tmp_path):
    model = backbay.gguf.open(write(tmp_path / "a.gguf", *TEXT, block_count=2))
    backbay.open(model, "cpu_ref").close()
    assert model.closed


@pytest.mark.fault("a model states an impossible number of blocks", "ModelFileError with the key")
def test_an_impossible_number_of_blocks_is_refused(tmp_path):
    with pytest.raises(ModelFileError, match="a block_count in"):
        backbay.open(write(tmp_path / "a.gguf", *TEXT, block_count=2**31), "cpu_ref")
