"""Folders that are damaged or hostile: always a ModelFileError, in little time and memory."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_folders import file_of, llama_config, llama_tensors, safetensors, write_folder, write_llama
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backbay import BackbayError, ModelFileError
from backbay.discovery import open_model
from backbay_engine import load

Row = dict[str, Any]
GOOD: Row = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
HUGE = 1 << 62


def opened(folder: Path) -> None:
    """Open a folder, and read all that it has."""
    with open_model(folder) as model:
        for name in model.tensors:
            for _ in model.chunks(name):
                pass
        for key in model.metadata:
            model.metadata[key]


def a_file(tmp_path: Path, data: bytes) -> Path:
    write_folder(tmp_path, llama_config(300), {})
    (tmp_path / "model.safetensors").write_bytes(data)
    return tmp_path


@pytest.mark.fault(
    "a safetensors file is damaged or hostile", "ModelFileError with the file, the place and the value"
)
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "an empty file"),
        (b"\0" * 7, "the 8 bytes of the header's length"),
        (struct.pack("<Q", HUGE) + b"{}", "a header of at most"),
        (struct.pack("<Q", 3) + b"{}", "a header of at most 2 bytes"),
        (file_of("[" * 100000, b""), "JSON of few levels|JSON in UTF-8"),
        (struct.pack("<Q", 2) + b"\xff{", "JSON in UTF-8"),
        (file_of("[1]", b""), "a JSON object as header"),
        (file_of({"x": 1}, b""), "an object as description"),
        (file_of({"x": {**GOOD, "dtype": "F31"}}, bytes(24)), "a known dtype .*nearest: 'F32'"),
        (file_of({"x": {**GOOD, "dtype": 7}}, bytes(24)), "a known dtype"),
        (file_of({"x": {**GOOD, "shape": [2, -3]}}, bytes(24)), "a shape"),
        (file_of({"x": {**GOOD, "shape": [HUGE, HUGE]}}, bytes(24)), "bytes of tensor 'x'"),
        (file_of({"x": {**GOOD, "shape": [1] * 9}}, bytes(24)), "a shape"),
        (file_of({"x": {**GOOD, "data_offsets": [0, 25]}}, bytes(25)), "24 bytes of tensor"),
        (file_of({"x": {**GOOD, "data_offsets": [8, 32]}}, bytes(24)), "within the file's"),
        (file_of({"x": {**GOOD, "data_offsets": [24, 0]}}, bytes(24)), "24 bytes of tensor"),
        (file_of({"x": {**GOOD, "data_offsets": [True, 24]}}, bytes(24)), "two data_offsets"),
        (file_of({"x": GOOD, "y": GOOD}, bytes(24)), "at byte .* or later"),
    ],
)
def test_a_hostile_header_is_refused(data: bytes, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=expected):
        opened(a_file(tmp_path, data))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"weight_map": {"x": "../other.safetensors"}}, "names of files in its own folder"),
        ({"weight_map": {"x": "/etc/passwd"}}, "names of files in its own folder"),
        ({"weight_map": {"x": 1}}, "an object weight_map"),
        ({"weight_map": []}, "an object weight_map"),
        ({"weight_map": {"x": "missing.safetensors"}}, "a readable safetensors file"),
    ],
)
def test_a_hostile_index_is_refused(change: Row, expected: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_config(300), llama_tensors(llama_config(300)), files=2)
    (folder / "model.safetensors.index.json").write_text(json.dumps(change))
    with pytest.raises(ModelFileError, match=expected):
        opened(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_config(300), llama_tensors(llama_config(300)), files=2)
    first, second = sorted(folder.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(ModelFileError, match="in one file only"):
        opened(folder)


CONFIG: list[tuple[Row, str]] = [
    ({"architectures": []}, "the class of the model"),
    ({"num_hidden_layers": "2"}, "a whole number in 'num_hidden_layers'"),
    ({"num_hidden_layers": 1e300}, "a whole number"),
    ({"num_hidden_layers": 1 << 30}, "a number from 0 to 16384"),
    ({"head_dim": 1 << 30}, "a number up to 65536"),
    ({"num_attention_heads": 0}, "a number above 0"),
    ({"num_attention_heads": -4}, "a number above 0|a shape|number"),
    ({"rms_norm_eps": "x"}, "a finite number"),
    ({"rope_parameters": 3}, "an object in 'rope_parameters'"),
    ({"rope_scaling": {"rope_type": "spiral"}}, "a known way to extend the context"),
    ({"num_attention_heads": 7}, "the configuration|rows|expected"),
]


@pytest.mark.parametrize(("change", "expected"), CONFIG)
def test_a_hostile_configuration_is_refused(change: Row, expected: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_config(300) | change, llama_tensors(llama_config(300)))
    with pytest.raises(ModelFileError, match=expected), load(folder, "cpu_ref", context=16):
        pass


TOKENIZERS: list[tuple[Callable[[Row], Any], str]] = [
    (lambda found: found["model"].update(type="Magic"), "a tokenizer of a type that is known"),
    (lambda found: found["model"].update(vocab=[1]), "an object of texts and ids"),
    (lambda found: found["model"].update(vocab={"a": HUGE}), "an object of texts and ids"),
    (lambda found: found["model"].update(vocab={"a": 1, "b": 1}), "a text of its own"),
    (lambda found: found["model"].update(vocab={"a": 100000}), "ids below"),
    (lambda found: found["model"].update(type="Unigram", vocab=[["a"]]), "a list of texts with scores"),
    (lambda found: found["model"].update(merges=[["a"]]), "merges of two texts"),
    (lambda found: found["model"].update(merges={"a": "b"}), "a list of merges"),
    (lambda found: found.update(added_tokens=[{"id": -1, "content": "x"}]), "an id and a content"),
    (lambda found: found.update(added_tokens=[3]), "an id and a content"),
    (lambda found: found.update(post_processor={"processors": 3}), "files of a tokenizer"),
    (lambda found: found.update(added_tokens=[{"id": 1, "content": "\ud83d"}]), "half a surrogate pair"),
]


@pytest.mark.fault(
    "a token, or a chat template, has half a surrogate pair", "ModelFileError that names it and its place"
)
@pytest.mark.parametrize(("change", "expected"), TOKENIZERS)
def test_a_hostile_tokenizer_is_refused(change: Callable[[Row], Any], expected: str, tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    found = json.loads((folder / "tokenizer.json").read_text())
    change(found)
    (folder / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(ModelFileError, match=expected):
        opened(folder)


def test_a_tensor_that_no_model_of_the_class_has_is_named(tmp_path: Path) -> None:
    tensors = llama_tensors(llama_config(300)) | {
        "model.layers.0.self_attn.g_proj.weight": np.zeros((4, 4), np.float32)
    }
    with pytest.raises(
        ModelFileError, match=r"convert_hf_to_gguf.py, found 'model.layers.0.self_attn.g_proj.weight'"
    ):
        opened(write_folder(tmp_path, llama_config(300), tensors))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.integers(0, 5000),
    cut=st.integers(1, 30),
    put=st.binary(min_size=1, max_size=30),
    file=st.sampled_from(["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"]),
)
def test_bytes_that_change_anywhere_are_read_or_refused(
    at: int, cut: int, put: bytes, file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = write_llama(tmp_path_factory.mktemp("fuzz"), width=16)
    path = folder / file
    data = path.read_bytes()
    place = at % len(data)
    path.write_bytes(data[:place] + put + data[place + cut :])
    with suppress(BackbayError):
        opened(folder)


def test_tensors_that_lie_at_odd_bytes_are_copied(tmp_path: Path) -> None:
    """Old writers do not align data, and libraries read whole numbers."""
    config = llama_config(300)
    tensors = llama_tensors(config)
    folder = write_folder(tmp_path, config, tensors)
    data = safetensors(tensors)
    length = struct.unpack("<Q", data[:8])[0]
    header = data[8 : 8 + length].rstrip()
    header += b" " * (1 - (8 + len(header)) % 2)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
    with open_model(folder) as model:
        wanted = tensors["model.layers.0.self_attn.v_proj.weight"]
        assert np.array_equal(
            model.data("blk.0.attn_v.weight").view(np.float32).reshape(wanted.shape), wanted
        )
        assert model.data("blk.0.attn_v.weight").ctypes.data % 8 == 0
