"""Old files that hold the matrix of each expert by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from gguf.quants import quantize
from gguf_experts import MATRICES, NAME, Q8_0, save, single

import backbay
import backbay.gguf
from backbay.errors import ModelFileError


def test_they_are_one_tensor_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    others = {"blk.0.ffn_gate_inp.weight": MATRICES[0], "blk.0.ffn_norm.weight": MATRICES[0, 0]}
    with backbay.gguf.open(save(tmp_path / "m.gguf", single() | others)) as file:
        assert set(file.tensors) == {NAME, *others}
        info = file.tensors[NAME]
        assert (info.shape, info.dtype, info.nbytes) == ((32, 4, 3), backbay.DType.F32, MATRICES.nbytes)
        assert file.data(NAME).tobytes() == MATRICES.tobytes()
        assert file.data(NAME) is file.data(NAME)


def test_quantized_matrices_in_several_files_are_stacked_as_they_are(tmp_path: Path) -> None:
    packed = {name: quantize(data, Q8_0) for name, data in single().items()}
    save(tmp_path / "m.gguf", packed, per_part=1)
    with backbay.gguf.open(tmp_path / "m-00002-of-00003.gguf") as file:
        assert file.tensors[NAME].shape == (32, 4, 3)
        assert file.data(NAME).tobytes() == quantize(MATRICES, Q8_0).tobytes()


@pytest.mark.parametrize(
    "odd",
    [
        {"blk.0.ffn_gate.4.weight": MATRICES[0]},
        {"blk.0.ffn_gate.3.weight": MATRICES[0, :2]},
        {"blk.0.ffn_gate.3.weight": MATRICES[0].astype(np.float16)},
        {NAME: MATRICES},
    ],
)
def test_what_makes_no_stack_stays_as_it_is(tmp_path: Path, odd: dict[str, np.ndarray]) -> None:
    with backbay.gguf.open(save(tmp_path / "m.gguf", single() | odd)) as file:
        assert set(file.tensors) == {*single(), *odd}
        assert file.data("blk.0.ffn_gate.1.weight").tobytes() == MATRICES[1].tobytes()


def test_without_room_for_a_stack_the_error_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with backbay.gguf.open(save(tmp_path / "m.gguf", single())) as file:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        with pytest.raises(ModelFileError, match=r"room in .*nowhere.*set TMPDIR"):
            file.data(NAME)


def test_backends_book_a_stack_like_any_weight_of_its_layer(tmp_path: Path) -> None:
    path = save(tmp_path / "m.gguf", single())
    for allocates in (True, False):
        params = backbay.BackendParams(alloc_memory=allocates)
        with backbay.open(path, backend="cpu_ref", params=params) as backend:
            assert [memory.size for memory in backend.memory().cpu.weights] == [MATRICES.nbytes, 0]
