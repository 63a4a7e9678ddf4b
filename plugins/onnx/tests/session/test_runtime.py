"""Errors when ONNX Runtime is missing or installed twice, and the translation of its own errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

import backbay
from backbay_onnx.backend import OnnxBackend
from backbay_onnx.session import runtime as module
from backbay_onnx.session.session import create_session, session_options

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    module.load_runtime.cache_clear()
    yield
    module.load_runtime.cache_clear()


def test_a_session_that_fails_prints_no_banner(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        backbay.open(None, "onnx") as backend,
        pytest.raises(backbay.BackbayError, match="creating a session"),
    ):
        create_session(ModelProto(), [], session_options(1, shared=False), backend.device, None)
    assert capfd.readouterr() == ("", "")


def test_the_runtime_is_in_no_base_dependency() -> None:
    import tomllib

    project = tomllib.loads(PROJECT.read_text())["project"]
    assert not any(dependency.startswith("onnxruntime") for dependency in project["dependencies"])
    assert sorted(project["optional-dependencies"]) == ["cpu", "cuda", "webgpu"]


def test_a_missing_runtime_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda name: False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(backbay.BackendUnavailableError, match=r"not installed.*pip install onnxruntime"):
        backbay.open(None, backend="onnx")


@pytest.mark.fault("ONNX Runtime cannot be imported", "BackendUnavailableError with the reason")
def test_a_broken_runtime_is_said_to_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda name: name == "onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(backbay.BackendUnavailableError, match="is broken"):
        backbay.open(None, backend="onnx")


@pytest.mark.fault(
    "two distributions of ONNX Runtime are installed", "BackendUnavailableError naming both and the remedy"
)
def test_two_runtimes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    with pytest.raises(backbay.BackendUnavailableError, match=r"both installed.*pip uninstall"):
        backbay.open(None, backend="onnx")


def test_the_doctor_names_the_installed_distributions_even_if_they_do_not_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = OnnxBackend.diagnose()
    assert facts["installed"].startswith("onnxruntime")
    assert module.load_runtime().__version__ in facts["ONNX Runtime"]
    assert facts["CUDA"] == "works" or "to have it: pip" in facts["CUDA"]
    assert "q4_0" in facts["stays quantized"]
    module.load_runtime.cache_clear()
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    assert "both installed" in OnnxBackend.diagnose()["ONNX Runtime"]


def test_installed_distributions_are_found_by_their_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> Any:
        if name != "onnxruntime-gpu":
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", find)
    assert [name for name in module.DISTRIBUTIONS if module.is_installed(name)] == ["onnxruntime-gpu"]


def test_errors_of_every_class_become_ours() -> None:
    ort = module.load_runtime()
    with (
        pytest.raises(backbay.BackbayError, match="while creating a session"),
        module.translate_errors("creating a session"),
    ):
        ort.InferenceSession(b"no model", providers=["CPUExecutionProvider"])
    with pytest.raises(MemoryError), module.translate_errors("running"):
        raise RuntimeError("Failed to allocate memory for requested buffer of size 9")
    with pytest.raises(backbay.CancelledError), module.translate_errors("running"):
        raise RuntimeError("Exiting due to terminate flag being set to true.")
    with pytest.raises(KeyError), module.translate_errors("running"):  # ours stay what they are
        raise KeyError("own fault")


POOLS = """
import sys
import backbay, onnxruntime
from onnx import helper
if "first" in sys.argv:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [None])], [helper.make_tensor_value_info("y", 1, [None])],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
for threads, whose in (2, "own"), (2, "shared"), (1, "own"), (3, "shared"):
    params = backbay.BackendParams(num_threads=threads, options={"threads": whose})
    with backbay.open(None, backend="onnx", params=params) as backend:
        with backend.new_context() as ctx:
            y = ctx.from_floats([3.0]).sqr(ctx)
            ctx.compute(y)
            assert y.floats() == [9.0]
"""


@pytest.mark.parametrize("who", ["first", "alone"])
def test_backends_with_other_numbers_of_threads_live_in_one_process(who: str) -> None:
    subprocess.run([sys.executable, "-c", POOLS, who], check=True)


@pytest.mark.fault("Ctrl-C while ONNX Runtime is imported", "KeyboardInterrupt")
def test_ctrl_c_in_the_import_is_no_broken_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "onnxruntime":
                raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(module, "is_installed", lambda name: name == "onnxruntime")
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        module.load_runtime.__wrapped__()
