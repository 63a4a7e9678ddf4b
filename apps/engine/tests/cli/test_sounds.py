"""The commands, for models that hear."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_sound import write_small_sound
from small_whisper import write_ggml, write_whisper
from sounds import as_file, heard

from backbay.cli import main

Files = tuple[str, str]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """A sound, and a Whisper."""
    folder = tmp_path_factory.mktemp("sounds")
    sound = folder / "sound.wav"
    sound.write_bytes(as_file(heard(3.0)))
    return str(sound), str(write_whisper(folder / "whisper"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["transcribe", *arguments, "--backend", "cpu_ref", "--context", "16"]) == 0
    return capsys.readouterr().out


def test_a_transcript_is_text_subtitles_or_json(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads(printed(capsys, *files, "--language", "de", "--json"))
    assert whole["language"] == "de"
    assert whole["duration"] == 3.0
    texts = [segment["text"] for segment in whole["segments"]]
    assert len(texts) > 1
    srt, vtt = (printed(capsys, *files, "--language", "de", f"--{kind}") for kind in ("srt", "vtt"))
    assert srt.count(" --> ") == vtt.count(" --> ") == len(texts)
    assert srt.startswith("1\n00:00:0")
    assert srt.endswith("\n\n")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert printed(capsys, *files, "--language", "de").count("\n") >= len(texts)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--language", "xx"], "the model knows no language 'xx'"),
        (["--task", "sing"], "invalid choice: 'sing'"),
        (["--srt", "--json"], "not allowed with argument"),
    ],
)
def test_wrong_arguments_are_refused(
    files: Files, more: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["transcribe", *files, *more, "--backend", "cpu_ref"])
    except SystemExit as ended:
        status = int(ended.code or 0)
    assert status != 0
    assert reason in capsys.readouterr().err


def test_a_file_that_is_no_sound_is_named(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = str(Path(files[0]).with_suffix(".mp4"))
    assert main(["transcribe", wrong, files[1], "--backend", "cpu_ref"]) != 0
    assert f"{wrong} cannot be read" in capsys.readouterr().err


def test_a_question_about_a_sound_is_answered(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, projector = write_small_sound(tmp_path, "voxtral")
    short = tmp_path / "short.wav"
    short.write_bytes(as_file(heard(0.5)))
    asked = ["run", str(model), "--projector", str(projector), "-p", "What?", "-n", "3", "--temperature", "0"]
    asked += ["--json", "--backend", "cpu_ref"]
    assert main(asked) == 0
    deaf = json.loads(capsys.readouterr().out)
    assert main([*asked, "--audio", str(short)]) == 0
    hearing = json.loads(capsys.readouterr().out)
    assert hearing["timings"]["prompt_tokens"] > deaf["timings"]["prompt_tokens"] + 4
    assert main([*asked, "--audio", str(short), "--session", str(tmp_path / "kept")]) == 2
    assert "with sounds cannot be kept" in capsys.readouterr().err


def test_other_commands_say_what_a_whisper_is_for(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["run", files[1], "Hello"],
        ["run", files[1], "Hello", "--chat"],
        ["embed", files[1], "Hello"],
    ):
        assert main([*command, "--backend", "cpu_ref"]) != 0
        assert "whisper writes transcripts of sounds; use transcribe" in capsys.readouterr().err
    file = write_ggml(Path(files[0]).with_name("ggml-small.bin"))
    assert main(["inspect", str(file)]) == 0
    assert "ggml-small.bin: read as a GGUF file" in capsys.readouterr().out
