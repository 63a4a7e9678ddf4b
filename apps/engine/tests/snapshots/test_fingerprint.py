"""The fingerprint of a model tells it from every other one."""

from __future__ import annotations

from pathlib import Path

from small_llama import write_small_llama

from backbay import gguf
from backbay_engine.snapshots.snapshot import model_fingerprint


def of(path: Path) -> str:
    with gguf.open(path) as model:
        return model_fingerprint(model)


def test_each_tensor_counts(tmp_path: Path) -> None:
    path = write_small_llama(tmp_path / "model.gguf")
    whole, found = path.read_bytes(), {of(path)}
    with gguf.open(path) as model:
        places = [info.offset for info in model.tensors.values()]
    for place in places:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found.add(of(path))
    assert len(found) == len(places) + 1


def test_metadata_that_change_results_count_and_the_place_does_not(tmp_path: Path) -> None:
    path = write_small_llama(tmp_path / "model.gguf")
    copied = tmp_path / "elsewhere.gguf"
    copied.write_bytes(path.read_bytes())
    assert of(copied) == of(path)
    context = b"llama.context_length"
    place = copied.read_bytes().index(context) + len(context) + 4  # behind the type of the number
    with copied.open("r+b") as file:
        file.seek(place)
        file.write(b"\x11")
    assert of(copied) != of(path)
