"""inspect shows a file as it is: cut short for people, exact for programs, harmless to terminals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf_build import write_model

from backbay import gguf
from backbay.cli import main


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_model(path, kinds=(Type.F32, Type.Q8_0, Type.F16), vocabulary=20)
    return path


def test_tensors_metadata_and_totals_are_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["general.architecture", "llama"] in rows
    assert ["blk.1.w", "q8_0", "256", "x", "3", "816", "B"] in rows
    assert ["f32", "2", "1,024", "4.0", "KiB", "56.6%"] in rows
    assert ["all", "6", "3,072", "7.1", "KiB", "100.0%"] in rows


def test_long_arrays_are_cut_short_unless_all_is_asked_for(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["inspect", str(file)])
    assert "'token 5', ...] (20)" in capsys.readouterr().out
    main(["inspect", str(file), "--full"])
    assert "'token 19'] (20)" in capsys.readouterr().out


def test_json_holds_exact_numbers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(file), "--json", "--full"]) == 0
    report = json.loads(capsys.readouterr().out)
    with gguf.open(file) as model:
        tensors = {t.name: (str(t.dtype), list(t.shape), t.offset, t.nbytes) for t in model.tensors.values()}
        keys = list(model.metadata)
    told = {t["name"]: (t["dtype"], t["shape"], t["offset"], t["nbytes"]) for t in report["tensors"]}
    assert told == tensors
    assert list(report["metadata"]) == keys
    assert report["metadata"]["tokenizer.ggml.tokens"] == [f"token {i}" for i in range(20)]
    assert report["metadata"]["test.int32s"] == [-(2**31), 1, 2**31 - 1]
    assert report["totals"][-1]["nbytes"] == sum(t[3] for t in tensors.values())


def test_json_tells_how_long_a_shortened_array_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["inspect", str(file), "--json"])
    report = json.loads(capsys.readouterr().out)
    tokens = report["metadata"]["tokenizer.ggml.tokens"]
    assert tokens == {"length": 20, "first": [f"token {i}" for i in range(6)]}


@pytest.mark.fault("a model file's texts hold terminal controls", "they are printed escaped")
def test_what_a_file_says_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_string("evil", "\x1b[2Jgone\r\nnext")
    writer.add_key_value("number", float("nan"), 6)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    main(["inspect", str(path)])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\\x1b[2Jgone\\r\\nnext" in said
    main(["inspect", str(path), "--json"])
    metadata = json.loads(capsys.readouterr().out)["metadata"]
    assert metadata["evil"] == "\x1b[2Jgone\r\nnext"
    assert metadata["number"] == "nan"


def test_a_damaged_file_is_one_line_and_status_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:200])
    assert main(["inspect", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"backbay: {file} at byte ")
    assert said.err.count("\n") == 1
