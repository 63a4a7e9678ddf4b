"""Wrong arguments of commands: one line names the mistake, the status tells failure, and no file is lost."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from model_files import stored
from small_llama import write_small_llama

from backbay.cli import main

SMALL = ["--context", "64", "--threads", "1"]
BERT = str(stored("bert-mean"))
WORDS = ("-1", "nan", "1e3", "many", "")  # which are no whole numbers, or below 0
NEVER = (*WORDS, "99999999999999999999")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


def words_of(command: str, path: object) -> list[str]:
    """A command that works."""
    return {
        "run": ["run", f"{path}", "-p", "hi", "-n", "2", "--backend", "cpu_ref", *SMALL],
        "embed": ["embed", BERT, "hello", "--backend", "cpu_ref", *SMALL],
        "tokenize": ["tokenize", f"{path}", "hello"],
        "memory": ["memory", f"{path}", "--backend", "cpu_ref", *SMALL],
        "bench": ["bench", f"{path}", "--backend", "cpu_ref", "--prompt", "4", "--generate", "2", *SMALL],
        "diff": ["diff", f"{path}", "--b", "cpu_ref", *SMALL],
        "export": ["export", f"{path}", "--backend", "cpu_ref", "-o", "unused", *SMALL],
        "conform": ["conform", "cpu_ref", "--op", "neg", "--size", "smoke"],
    }[command]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The status of a refused command, and the line of its output that gives the reason."""
    status: Any
    try:
        status = main(words)
    except SystemExit as left:
        status = left.code
    said = capsys.readouterr()
    assert said.out == ""
    *_, reason = (line for line in said.err.splitlines() if not line.endswith(" --help shows its arguments"))
    return status, reason


MODELS = ("run", "embed", "memory", "bench", "diff", "export")
NUMBERS = [
    *(
        (command, f"--{name}", ("0", *NEVER))
        for command in MODELS
        for name in ("parallel", "batch", "threads")
    ),
    *((command, "--context", ("0", "1", *NEVER)) for command in MODELS),
    *((command, "--gpu-layers", NEVER) for command in MODELS),
    ("run", "--top-k", WORDS),
    ("run", "--num-keep", NEVER),
    ("run", "--max-tokens", ("0", *NEVER)),
    ("bench", "--prompt", NEVER),
    ("bench", "--generate", NEVER),
    ("bench", "--rounds", ("0", *NEVER)),
    ("export", "--tokens", ("0", *NEVER)),
    ("conform", "--jobs", ("0", "1000000", *NEVER)),
    ("conform", "--seed", NEVER),
]
REALS = [
    ("run", "--temperature", ("-1", "nan", "inf", "hot", "")),
    ("run", "--top-p", ("0", "-1", "1.1", "nan", "inf", "all")),
    ("run", "--min-p", ("-0.1", "1.1", "nan", "inf", "all")),
    ("run", "--repetition-penalty", ("0", "-1", "nan", "inf", "much")),
    ("run", "--seed", ("-1", "1.5", "nan", "dice")),
    ("conform", "--timeout", ("0", "-1", "nan", "inf", "soon")),
]


@pytest.mark.parametrize(("command", "option", "values"), [*NUMBERS, *REALS])
def test_numbers_that_cannot_be_are_not_understood(
    path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str, values: tuple[str, ...]
) -> None:
    for value in values:
        status, why = refusal([*words_of(command, path), f"{option}={value}"], capsys)
        assert status == 2, value
        assert f"argument {option}" in why or f"/{option}" in why, value
        assert value in why, value


@pytest.mark.parametrize("command", MODELS)
def test_sizes_beyond_any_machine_are_refused(
    path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = [*words_of(command, path), "--context", "1000000000", "--parallel", "60000"]
    status, why = refusal(words, capsys)
    assert status == 1
    assert "60000000000000 cells of a cache" in why


def broken_files(folder: Path) -> dict[str, tuple[str, str]]:
    """Paths that are not models, and the error for each."""
    (folder / "text.gguf").write_text("no model at all")
    (folder / "empty.gguf").touch()
    return {
        "missing": (str(folder / "none.gguf"), "No such file"),
        "folder": (str(folder), "a folder with config.json or one GGUF file"),
        "text": (str(folder / "text.gguf"), "the magic GGUF"),
        "empty": (str(folder / "empty.gguf"), "an empty file"),
    }


@pytest.mark.parametrize("command", [*MODELS, "tokenize"])
@pytest.mark.parametrize("what", ["missing", "folder", "text", "empty"])
def test_files_that_are_no_models_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, what: str
) -> None:
    file, told = broken_files(tmp_path)[what]
    words = words_of(command, file)
    words[1] = file
    status, why = refusal(words, capsys)
    assert status == 1
    assert told in why


def test_layers_on_gpus_of_an_impossible_number_of_blocks_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "none.gguf", "llama")
    writer.add_int32("llama.block_count", -5)
    writer.add_tensor("output.weight", np.ones((4, 4), np.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    words = ["run", str(tmp_path / "none.gguf"), "-p", "x", "--backend", "cpu_ref", "--gpu-layers", "3"]
    status, why = refusal(words, capsys)
    assert status == 1
    assert "expected a block_count in [0, 65536), found -5" in why


@pytest.mark.parametrize("command", [*MODELS, "tokenize"])
def test_an_empty_path_is_wrong_usage(capsys: pytest.CaptureFixture[str], command: str) -> None:
    words = words_of(command, "nowhere.gguf")
    words[1] = ""
    status, why = refusal(words, capsys)
    assert (status, "the path of a model file must be" in why) == (2, True)


@pytest.mark.fault("a report's file cannot be written", "a usage error before any work")
@pytest.mark.parametrize(
    ("command", "option"),
    [("bench", "--plot"), ("diff", "--plot"), *(("conform", o) for o in ("--json", "--html", "--junit"))],
)
def test_a_file_that_cannot_be_written_is_refused_before_work_is_done(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    for file, told in (
        (tmp_path, "must be the path of a file"),
        (tmp_path / "none" / "x", "there is no folder"),
        (path / "x", "there is no folder"),
        ("", "must be the path of a file"),
    ):
        status, why = refusal([*words_of(command, path), f"{option}={file}"], capsys)
        assert status == 2
        assert told in why


@pytest.mark.parametrize(
    ("command", "option"), [("export", "--output"), ("conform", "--failures"), ("conform", "--certify")]
)
def test_a_folder_that_cannot_be_made_is_refused_before_work_is_done(
    path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    for folder, told in (
        (path, "is a file"),
        (path / "below", "is a file"),
        (path.parent / "none" / "below", "there is no folder"),
        ("", "the path of a folder"),
    ):
        status, why = refusal([*words_of(command, path), f"{option}={folder}"], capsys)
        assert status == 2
        assert told in why


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["run", "--prompt", "x", "--option", "colour"], 2, "--option takes NAME=VALUE, got 'colour'"),
        (["run", "--prompt", "x", "--option", "colour=red"], 2, "unknown option 'colour'"),
        (["run", "--prompt", "x", "--backend", "cpu_rev"], 1, "did you mean 'cpu_ref'?"),
        (["run", "--prompt", "x", "--backend", ""], 1, "no backend ''"),
        (["run", "--prompt", ""], 1, "the prompt is empty"),
        (["run"], 2, "give a prompt with -p TEXT"),
        (["run", "--prompt", "x", "--stop", ""], 2, "a stop string must not be empty"),
        (["run", "--prompt", "x", "--num-keep", "63"], 1, "num_keep must be an integer in [0, 62], got 63"),
        (["embed", "x"], 1, "generates text; embeddings come from a model like bert"),
        (["bench", "--prompt", "0", "--generate", "0"], 2, "nothing to measure; set one above 0"),
        (["bench", "--generate", "1"], 2, "--generate must be 0, or at least 2"),
        (["bench", "--prompt", "64"], 2, "--context must be at least 129"),
        (["bench", "--prompt", "9", "--generate", "0", "--backend", "cpu_ref,,"], 1, "no backend ''"),
        (["diff", "--b", "nobody"], 1, "no backend 'nobody'"),
        (["diff", "--b", "cpu_ref", "--prompt", "x" * 64], 1, "65 tokens, the context holds 64"),
        (["diff", "--b", "cpu_ref", "--prompt", ""], 1, "the prompt is empty"),
        (["diff", "--b", "cpu_ref", "--backend", "onnx"], 2, "unrecognized arguments: --backend onnx"),
        (["export", "--output", "unused", "--tokens", "65"], 1, "65 tokens, the context holds 64"),
    ],
)
def test_what_does_not_go_together_is_refused(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    told: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    command, *others = words
    backend = [] if "--backend" in words or command == "diff" else ["--backend", "cpu_ref"]
    found, why = refusal([command, str(path), *others, *backend, *SMALL], capsys)
    assert told in why
    assert found == status


@pytest.mark.fault("standard input is not UTF-8", "one line naming the first wrong byte, exit status 1")
@pytest.mark.parametrize("words", [["run", "-p", "-"], ["tokenize"], ["embed"]])
def test_input_that_is_no_text_is_refused(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9 \xff"), "utf-8"))
    command, *others = words
    status, why = refusal([command, str(path), *others], capsys)
    assert status == 1
    assert "standard input is no text in utf-8" in why


@pytest.mark.parametrize(("command", "wanted"), [("embed", "embeddings"), ("rerank", "scores")])
def test_a_model_that_makes_no_numbers_is_refused_before_anything_is_measured_or_loaded(
    path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    wanted: str,
) -> None:
    monkeypatch.setattr(
        "backbay_engine.cli.model_arguments.load", lambda *_, **__: pytest.fail("it is loaded")
    )
    status, why = refusal([command, str(path), "a", "b", *SMALL], capsys)
    assert (status, f"generates text; {wanted} come from" in why) == (1, True)


def test_bench_leaves_out_what_gets_no_tokens(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(path), "--backend", "cpu_ref", "--rounds", "1", "--threads", "1"]
    assert main([*words, "--prompt", "0", "--generate", "3"]) == 0
    assert "tg3" in capsys.readouterr().out
    assert main([*words, "--prompt", "3", "--generate", "0"]) == 0
    assert "tg" not in capsys.readouterr().out


@pytest.mark.fault("a file that a command is to read or write is a pipe or a device", "one line, at once")
@pytest.mark.parametrize("option", ["--session", "--json-schema", "--grammar", "-o"])
def test_pipes_and_devices_are_refused_at_once(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", Path(os.devnull)):
        words = ["convert", str(path), "--force"] if option == "-o" else words_of("run", path)
        status, why = refusal([*words, option, str(odd)], capsys)
        assert status in (1, 2)
        assert "not a regular file" in why
        assert not odd.is_file()
