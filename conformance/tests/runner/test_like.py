"""`--like MODEL`: the very calls that a model makes are tried, and the report says so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import conform
from graph_files import meta, onnx_model, torch_node, write_program

from backbay import BackbayError
from backbay_conformance import Report, SelectionError, run
from backbay_conformance.report.certificate import certificate
from backbay_conformance.report.html import page

MODEL = Path(__file__).parents[3] / "examples/models/backbay-tiny-f16.gguf"


@pytest.fixture(scope="module")
def report() -> Report:
    return run("cpu_ref", ["core", "like"], ops=["mulmat", "rope", "set_rows"], size="smoke", like=MODEL)


def test_the_calls_of_a_model_are_tried(report: Report) -> None:
    assert report.ok
    tried = {name for profile, name, _ in report.cells if profile == "like"}
    assert tried == {"mulmat", "rope", "set_rows"}
    assert report.like is not None
    assert report.like.calls > 10
    assert any(kind.startswith("mulmat f16[") for kind in report.like.kinds)


def test_reports_and_certificates_name_the_model(report: Report) -> None:
    told = certificate(report, {})["like"]
    assert told["model"] == MODEL.name
    assert told["calls"] == report.like.calls if report.like else False
    assert set(told["not_drawn"]) <= set(told["kinds"])
    assert MODEL.name in page(report)


def model_file(kind: str, folder: Path) -> Path:
    """A model with rows of 384 elements: of a network, or of a graph with a node that is no call of the contract."""
    if kind == "gguf":
        return MODEL
    if kind == "pt2":
        values = {"x": meta((4, 384)), "w": meta((64, 384)), "y": meta((4, 64)), "z": meta((4, 64))}
        nodes = [torch_node("linear.default", ["x", "w"], ["y"]), torch_node("erfinv.default", ["y"], ["z"])]
        return write_program(folder / "model.pt2", nodes, values, [("parameter", "w")])
    onnx = pytest.importorskip("onnx")
    made = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"]), onnx.helper.make_node("Not", ["y"], ["z"])]
    weights = {"w": np.zeros((384, 64), np.float32)}
    onnx.save(onnx_model(made, {"x": ("tokens", 384)}, ["z"], weights), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["gguf", "onnx", "pt2"])
def test_a_fault_at_a_size_of_the_model_alone_is_caught_and_replayed(kind: str, tmp_path: Path) -> None:
    failures, model = tmp_path / "failures", str(model_file(kind, tmp_path))
    chosen = ("--op", "mulmat", "--size", "smoke", "--jobs", "1", "--failures", str(failures))
    backend = "broken_backends:WrongAt384"
    assert conform(backend, *chosen) == 0
    assert conform(backend, *chosen, "--like", model, "--profile", "like") == 1
    one = min(failures.iterdir())
    assert json.loads(one.read_text())["like"] == model
    assert conform(backend, "--repro", str(one)) == 1
    assert conform("cpu_ref", "--repro", str(one)) == 0


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_reports_name_the_nodes_of_a_graph_that_are_not_judged(kind: str, tmp_path: Path) -> None:
    model = model_file(kind, tmp_path)
    name = {"onnx": "Not", "pt2": "aten.erfinv.default"}[kind]
    report = run("cpu_ref", ["like"], like=model)
    assert report.ok
    told = certificate(report, {})["like"]
    assert (told["calls"], told["nodes"], told["unmapped"]) == (1, 2, {name: 1})
    assert f"its graph has 2 nodes, 1 of them without an op in the contract: {name} 1" in page(report)
    assert not run("broken_backends:WrongAt384", ["like"], like=model).ok


def test_a_model_that_cannot_be_read_is_no_fault_of_the_backend(tmp_path: Path) -> None:
    path = write_program(tmp_path / "model.pt2", [], {})
    with pytest.raises(BackbayError, match=r"^--like: no node of .* is a call of the contract"):
        run("cpu_ref", ["like"], in_process=False, like=path)


def test_a_run_like_a_model_needs_the_model() -> None:
    with pytest.raises(SelectionError, match="give --like MODEL"):
        run("cpu_ref", ["like"])
    with pytest.raises(SelectionError, match="there is no file"):
        run("cpu_ref", like="no_such.gguf")


def test_without_a_package_that_knows_models_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backbay_conformance.workloads.model_calls.PROVIDERS", [])
    with pytest.raises(BackbayError, match=r"pip install \./apps/engine"):
        run("cpu_ref", ["like"], like=MODEL)
