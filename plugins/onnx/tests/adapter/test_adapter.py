"""The adapter: it is as faithful as the plugin, and no provider passes by what it does not do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

import backbay
from backbay import (
    BackendParams,
    BackendUnavailableError,
    DType,
    GPULayers,
    GPULayersList,
    OptionError,
    RefusalError,
)
from backbay_conformance import Report, run
from backbay_onnx.adapter import provider as providers
from backbay_onnx.adapter.backend import ProviderBackend
from backbay_onnx.adapter.precision import measured_precision, parse_precision
from backbay_onnx.adapter.provider import Provider, assignment, find_provider

CPU, DECLINING = "builtin:CPUExecutionProvider", "builtin:AzureExecutionProvider"
UNKNOWN = {
    "RMSNormalization",
    "Gelu",
    "Softplus",
    "Softmax",
    "RotaryEmbedding",
    "Tile",
    "NonZero",
    "AveragePool",
}
"""Nodes that some providers do not take."""
FOLDED = "ONNX Runtime finds a constant, and leaves no node to CPUExecutionProvider"


def tried(ep: str, *ops: str, **options: Any) -> Report:
    return run(ProviderBackend, ops=ops, size="smoke", options={"ep": ep, **options})


@pytest.mark.parametrize("graphs", ["each", "whole"])
def test_on_the_cpu_provider_nothing_fails(graphs: str) -> None:
    report = tried(CPU, "mulmat", "rows", "copy", "repeat", "scaled_dot_product_attention", graphs=graphs)
    assert report.ok, report.failures[0]
    assert {each.reason for each in report.refusals} <= {FOLDED}


@pytest.mark.thorough
@pytest.mark.parametrize("graphs", ["each", "whole"])
def test_on_the_cpu_provider_nothing_fails_at_all(graphs: str) -> None:
    report = run(ProviderBackend, size="smoke", options={"ep": CPU, "graphs": graphs})
    assert report.ok, report.failures[0]


def test_plainer_nodes_take_the_place_of_those_that_a_provider_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    usual = Provider._session

    def choosy(self: Provider, model: bytes, threads: int, *, fallback: bool) -> Any:
        session = usual(self, model, threads, fallback=fallback)
        if found := UNKNOWN & {op for _, op in assignment(session)}:
            raise RefusalError(f"no {found}")
        return session

    monkeypatch.setattr(Provider, "_session", choosy)
    norms, others = ("rms_norm", "softmax"), ("gelu", "gelu_erf", "softplus", "rope")
    copies, windows = ("repeat", "repeat_4d", "add", "set_rows"), ("mulmat_id", "avg_pool2d")
    report = tried(CPU, *norms, *others, *copies, *windows)
    assert report.ok, report.failures[0]
    assert {each.reason for each in report.refusals} <= {FOLDED}


@pytest.mark.skipif(
    DECLINING.partition(":")[2] not in onnxruntime.get_available_providers(), reason="not built in"
)
def test_a_provider_that_takes_nothing_proves_nothing() -> None:
    report = tried(DECLINING, "neg", precision="f32")
    assert report.verdict == "nothing passed"
    assert {each.reason for each in report.refusals} == {"AzureExecutionProvider does not take Neg"}


@pytest.mark.skipif(
    DECLINING.partition(":")[2] not in onnxruntime.get_available_providers(), reason="not built in"
)
def test_a_provider_that_declines_in_silence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Provider._session
    monkeypatch.setattr(Provider, "_session", lambda *args, fallback: usual(*args, fallback=True))
    report = tried(DECLINING, "neg", precision="f32")
    assert report.verdict == "nothing passed"
    assert all("has declined Neg in silence" in each.reason for each in report.refusals)


@pytest.mark.parametrize(
    ("ep", "kind", "told"),
    [
        ("", OptionError, "needs the option ep"),
        ("no_such_package", OptionError, "neither a library's file, nor a package"),
        ("json", OptionError, "has none of the functions"),
        ("builtin:NoExecutionProvider", BackendUnavailableError, "has no NoExecutionProvider; it has"),
    ],
)
def test_a_provider_that_is_not_there_is_an_error(ep: str, kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        ProviderBackend(None, BackendParams(options={"ep": ep}))


def test_a_provider_without_a_device_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(
        get_ep_devices=list, register_execution_provider_library=lambda name, path: None, __version__="1"
    )
    monkeypatch.setattr(providers, "load_runtime", lambda: runtime)
    with pytest.raises(BackendUnavailableError, match="reports no device on this machine"):
        find_provider(__file__)


def test_the_precision_of_the_cpu_is_measured_and_a_declared_one_is_shown() -> None:
    with ProviderBackend(None, BackendParams(options={"ep": CPU})) as backend:
        assert backend.devices()[0].name.endswith("precision f32/f32, measured")
    with ProviderBackend(None, BackendParams(options={"ep": CPU, "precision": "f16/f32"})) as backend:
        assert backend.devices()[0].name.endswith("precision f16/f32, declared")


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_a_trial_finds_rounded_operands_and_flushed_subnormals(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = np.float16 if dtype == "f16" else np.float32

    def session(self: Provider, model: bytes, threads: int) -> Any:
        def compute(x: Any, w: Any) -> Any:
            x, w = (each.astype(rounds).astype(np.float32) for each in (x, w))
            return x @ w if x.shape != w.shape else np.zeros_like(x)

        return SimpleNamespace(run=lambda _, given: [compute(**given)])

    monkeypatch.setattr(Provider, "session", session)
    found = measured_precision(Provider(f"rounds to {dtype}", ""))
    assert (str(found.activation), found.accumulate, str(found.weight)) == (dtype, DType.F32, dtype)
    assert found.flushes_subnormals


def test_a_precision_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="it must be measured, f32, f16, bf16, or two of these"):
        parse_precision("f8")


def test_layers_on_devices_are_refused_with_the_reason() -> None:
    layers = GPULayersList([GPULayers("TensorRT:0", [0])])
    params = BackendParams(gpu_layers=layers, options={"ep": "builtin:CPUExecutionProvider"})
    with pytest.raises(OptionError, match="may compile it as a whole"):
        backbay.open(None, backend="ort", params=params)
