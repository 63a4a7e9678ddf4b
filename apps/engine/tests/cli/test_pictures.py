"""The commands, for models that see."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image as Pillow
from small_vision import picture, write_small_vision

from backbay.cli import main

Files = tuple[list[str], str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The arguments that name a model, and a picture."""
    folder = tmp_path_factory.mktemp("vision")
    model, projector = write_small_vision(folder, "gemma3")
    path = folder / "picture.png"
    Pillow.fromarray(picture(30, 40)).save(path)
    return [str(model), "--projector", str(projector), "--context", "128"], str(path)


def test_a_question_about_a_picture_is_answered(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model, shown = files
    asked = ["-p", "What?", "-n", "3", "--temperature", "0", "--json", "--backend", "cpu_ref"]
    assert main(["run", *model, *asked, "--image", shown]) == 0
    seeing = json.loads(capsys.readouterr().out)
    assert main(["run", *model, *asked]) == 0
    blind = json.loads(capsys.readouterr().out)
    assert seeing["timings"]["prompt_tokens"] > blind["timings"]["prompt_tokens"] + 4
    assert seeing["timings"]["pictures"] > 0
    assert seeing["tokens"] != blind["tokens"]


def test_a_chat_takes_pictures(
    files: Files, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, shown = files
    lines = f"/image\n/image {shown}.txt\n/image {shown}\nWhat is it?\nAnd now?\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert main(["run", *model, "--chat", "-n", "2", "--backend", "cpu_ref"]) == 0
    told = capsys.readouterr().err
    assert "/image FILE: name the picture's file" in told
    assert "picture.png.txt cannot be read" in told
    assert "picture.png goes with the next question" in told
    assert told.count("ended by") == 2


def test_the_memory_says_what_a_model_sees(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = files
    assert main(["memory", *model, "--backend", "cpu_ref"]) == 0
    told = capsys.readouterr().out
    assert "encoder weights" in told
    assert "sees pictures: gemma3, 4 rows of 32 for a picture at most" in told
    assert main(["memory", *model, "--backend", "cpu_ref", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pictures"]["rows"] == 4
    assert told["memory"]["encoder"]["total"] > 0


def test_inspect_says_what_an_encoder_takes(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = files
    assert main(["inspect", model[2]]) == 0
    assert "sees pictures: encoder gemma3, image size 28, patch size 7" in capsys.readouterr().out
    assert main(["inspect", model[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] is None


def test_diff_goes_through_the_encoder(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model, shown = files
    assert main(["diff", *model, "--a", "cpu_ref", "--b", "onnx", "--image", shown, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    names = [each["name"] for each in told["blocks"]]
    assert names[:4] == ["encoder start", "encoder blk.0", "encoder blk.1", "encoder rows"]
    assert names[-1] == "logits"
    assert any(each["name"].startswith("encoder layer 0 #") for each in told["ops"])
    assert max(each["error"] for each in told["blocks"]) < 1e-2


def test_bench_times_a_picture(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    model, shown = files
    sizes = ["--prompt", "0", "--generate", "0", "--rounds", "1", "--backend", "cpu_ref", "--json"]
    assert main(["bench", *model, *sizes, "--image", shown]) == 0
    results = json.loads(capsys.readouterr().out)["results"]["cpu_ref"]
    assert list(results) == [f"picture.png {what}, ms" for what in ("prepared", "encoded", "first token")]


@pytest.mark.fault("--image names a file that is no picture", "exit status and the name of the file")
def test_a_file_that_is_no_picture_is_refused(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = files
    wrong = tmp_path / "note.txt"
    wrong.write_text("no picture")
    assert main(["run", *model, "-p", "What?", "--image", str(wrong), "--backend", "cpu_ref"]) != 0
    assert "note.txt" in capsys.readouterr().err
