"""The option `save` writes the models that a provider gets, and which models these are."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from backbay import OptionError, RefusalError
from backbay_conformance import Report, run
from backbay_onnx.adapter import provider_graph
from backbay_onnx.adapter.backend import ProviderBackend
from backbay_onnx.adapter.model_files import save_model
from backbay_onnx.adapter.provider import Provider, assignment

CPU = "builtin:CPUExecutionProvider"
README = Path(__file__).parents[2] / "README.md"


def tried(op: str, **options: Any) -> Report:
    report = run(ProviderBackend, ops=[op], size="tiny", options={"ep": CPU, **options})
    assert report.ok, report.failures[0]
    return report


def ops_of(folder: Path) -> set[str]:
    """The ops in the names of models."""
    return {op for path in folder.glob("*.onnx") for op in path.stem.split("-")[1:]}


@pytest.fixture
def _not_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's provider counts as one of another engine."""
    monkeypatch.setattr(provider_graph, "HOST_PROVIDER", SimpleNamespace(name="another"))


@pytest.mark.parametrize("graphs", ["each", "whole"])
def test_plain_onnxruntime_runs_what_is_saved(graphs: str, tmp_path: Path) -> None:
    tried("silu", graphs=graphs, save=str(tmp_path / "new" / "folder"))
    saved = [*tmp_path.rglob("*.npz")]
    assert saved
    assert len({path.stem.partition("-")[0] for path in saved}) == len(saved)
    for path in saved:
        inputs = np.load(path)
        if not any(inputs[name].dtype == np.uint16 for name in inputs):  # NumPy has no bf16
            onnxruntime.InferenceSession(path.with_suffix(".onnx")).run(None, dict(inputs))


def test_the_program_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tried("neg", save="models")
    program = re.findall(r"^    (session = .*\n)    (print\(session.*\n)", README.read_text(), re.MULTILINE)
    assert len(program) == 1
    exec("".join(program[0]), {"numpy": np, "onnxruntime": onnxruntime})


def test_nothing_is_written_without_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provider_graph, "save_model", None)
    monkeypatch.setattr(provider_graph, "save_inputs", None)
    tried("neg")
    assert not [*tmp_path.rglob("*.onnx")]


def test_a_folder_that_cannot_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"option save: .*file"):
        save_model(str(tmp_path / "file"), b"")


def test_the_cpu_gets_no_layer_normalization(tmp_path: Path) -> None:
    tried("layer_norm", save=str(tmp_path))
    assert "LayerNormalization" not in ops_of(tmp_path)


@pytest.mark.usefixtures("_not_the_cpu")
def test_others_get_layer_normalization_alone(tmp_path: Path) -> None:
    tried("layer_norm", save=str(tmp_path))
    assert "LayerNormalization" in ops_of(tmp_path)
    assert "Sub" not in ops_of(tmp_path)


@pytest.mark.usefixtures("_not_the_cpu")
def test_plainer_nodes_take_the_place_of_layer_normalization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Provider._session

    def choosy(self: Provider, model: bytes, threads: int, *, fallback: bool) -> Any:
        session = usual(self, model, threads, fallback=fallback)
        if "LayerNormalization" in {op for _, op in assignment(session)}:
            raise RefusalError("no LayerNormalization")
        return session

    monkeypatch.setattr(Provider, "_session", choosy)
    report = tried("layer_norm", save=str(tmp_path))
    assert {"LayerNormalization", "Sub"} <= ops_of(tmp_path)
    assert not [each for each in report.refusals if "LayerNormalization" in each.reason]
