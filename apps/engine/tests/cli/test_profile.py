"""`backbay profile`: the same table on every backend, and a sum that is honest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from small_llama import write_small_llama

import backbay
from backbay.cli import main
from backbay.internals import KernelPlan
from backbay.plugin import Plan
from backbay_engine.llm import LLM

SMALL = ["--threads", "1", "--prompt", "8", "--depth", "4", "--steps", "3", "--parallel", "2"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf"))


def profile(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["profile", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_the_parts_of_a_profile_add_up_on_every_backend(path, backend, capsys):
    found = profile(capsys, path, "--backend", backend, *SMALL)
    prompt, step = found["phases"]
    assert (prompt["name"], step["name"]) == ("prompt of 8", "step of 2 after 4")
    assert step["steps"] == 3
    for phase in (prompt, step):
        assert phase["tells_ops"]
        assert phase["usual"] > 0
        assert 0 < phase["told"] <= phase["backend"] <= 1.001 * phase["step"]
        for title in ("ops", "layers", "devices"):
            lines = phase[title].values()
            assert sum(line["seconds"] for line in lines) == pytest.approx(phase["told"])
            assert all(line["seconds"] >= 0 and line["nbytes"] >= 0 for line in lines)
        assert any(name.startswith("mulmat") for name in phase["ops"])
        assert {"0", "output"} <= set(phase["layers"])


def test_work_is_the_same_on_every_backend(path, capsys):
    work = []
    for backend in ("cpu_ref", "ggml", "onnx"):
        if backend in backbay.backends():
            _, step = profile(capsys, path, "--backend", backend, *SMALL)["phases"]
            lines = [line for name, line in step["ops"].items() if name.startswith("mulmat")]
            work.append([sum(line[key] for line in lines) for key in ("calls", "nbytes", "products")])
    assert work[0][2] > 0
    assert all(one == pytest.approx(work[0]) for one in work)


def test_a_backend_that_tells_whole_runs_only_says_so(path, capsys, monkeypatch):
    monkeypatch.setattr(KernelPlan, "profile", Plan.profile)
    assert main(["profile", path, "--backend", "cpu_ref", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "this backend tells the times of whole runs only" in printed
    assert "all ops together" in printed
    assert "add up" not in printed


def test_the_table_for_people_and_the_picture(path, capsys, tmp_path: Path):
    picture = tmp_path / "profile.svg"
    assert main(["profile", path, "--backend", "cpu_ref", *SMALL, "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "its ops add up to" in printed and "CPU:0" in printed
    assert "above 100 %, data lay in the processor's caches" in printed
    texts = [element.text for element in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "step of 2 after 4: layers" in texts and "rms_norm" in texts


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "0", "--steps", "0"], "leave nothing to profile"),
        (["--prompt", "100", "--context", "50"], "--context must be at least 102"),
    ],
)
def test_a_profile_of_nothing_or_without_room_is_refused(path, words, message, capsys):
    assert main(["profile", path, "--backend", "cpu_ref", *words]) == 2
    assert message in capsys.readouterr().err


def test_sequences_that_do_not_meet_are_tried_again(path, capsys, monkeypatch):
    submit, left = LLM.submit, [4]

    def one_after_the_other(llm: LLM, prompt: Any, **options: Any) -> Any:
        handle = submit(llm, prompt, **options)
        if left[0]:
            left[0] -= 1
            handle.result()
        return handle

    monkeypatch.setattr(LLM, "submit", one_after_the_other)
    assert profile(capsys, path, "--backend", "cpu_ref", *SMALL)["phases"][1]["steps"] == 3
    assert left == [0]


def test_sequences_that_never_meet_are_an_error(path, capsys, monkeypatch):
    submit = LLM.submit

    def one_after_the_other(llm: LLM, prompt: Any, **options: Any) -> Any:
        handle = submit(llm, prompt, **options)
        handle.result()
        return handle

    monkeypatch.setattr(LLM, "submit", one_after_the_other)
    assert main(["profile", path, "--backend", "cpu_ref", *SMALL]) == 2
    assert "no step had a token of each of the sequences" in capsys.readouterr().err
