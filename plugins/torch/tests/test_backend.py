"""The backend on the CPU, and on a device written in Python. The conformance suite tests everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import backbay
from backbay import BackendParams, BackendUnavailableError, DType, GPULayers, GPULayersList, OptionError, ops
from backbay.kernels import DeviceTrial

torch = pytest.importorskip("torch")
pytest.importorskip("array_api_compat")

import private_device  # noqa: E402

from backbay_torch import backbay_backend  # noqa: E402
from backbay_torch.engine import memory_errors  # noqa: E402

TorchBackend = backbay_backend()
MODEL = Path(__file__).parents[3] / "examples/models/backbay-tiny-f16.gguf"


def on(device: str, last: int = 0, **options: str) -> BackendParams:
    return BackendParams(gpu_layers=GPULayersList([GPULayers(device, range(last + 1))]), options=options)


def opened(params: BackendParams) -> backbay.Backend:
    return backbay.open(None, TorchBackend, params)


@pytest.fixture(params=[GPULayersList(), on(private_device.ID).gpu_layers], ids=["CPU", "private"])
def backend(request):
    with opened(BackendParams(gpu_layers=request.param)) as made:
        yield made


def test_a_graph_runs_again_on_other_data(backend):
    with backend.new_context() as ctx:
        w = ctx.from_floats([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        x = ctx.from_floats([[1.0, 1.0]])
        y = w.mulmat(ctx, x).silu(ctx)
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [2.857722, 6.993622, 10.999816], rtol=1e-6)
        x.from_floats([[1.0, 0.0]])
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [0.7310586, 2.857722, 4.966536], rtol=1e-6)


def test_rotated_rows_are_those_of_numpy(backend):
    """Kernels that make constants make them on the device."""
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((2, 1, 4), np.float32))
        y = x.rope(ctx, ctx.from_ints([0, 3]), 4, 10000.0)
        ctx.compute(y)
        angle = np.array([3.0, 0.03])
        last = np.stack([np.cos(angle) - np.sin(angle), np.sin(angle) + np.cos(angle)], -1)
        np.testing.assert_allclose(y.floats(), [1, 1, 1, 1, *last.reshape(-1)], rtol=1e-6)


def test_everything_lies_on_the_device_and_is_booked_there():
    with opened(on(private_device.ID)) as backend, backend.new_context() as ctx:
        x = ctx.from_floats(np.zeros((4, 256), np.float32))
        assert x.leaf.buffer.storage.device.type == private_device.NAME
        assert [gpu.id for gpu in backend.memory().gpus] == [private_device.ID]
        assert backend.memory().gpus[0].total() >= 4096
        host, device = backend.devices()
        assert (host.id, host.is_gpu) == ("CPU:0", False)
        assert (device.id, device.is_gpu, device.total_memory) == (private_device.ID, True, 4 << 30)


def test_a_dtype_that_the_device_lacks_is_declared_unsupported():
    with opened(on(private_device.ID)) as backend, backend.new_context() as ctx:
        x = ctx.empty(DType.BF16, 4)
        support = backend.supports(ops.neg, [x])
        assert not support
        assert support.reason == f"{private_device.ID} has no bf16"
        with pytest.raises(backbay.RefusalError, match="has no bf16"):
            ctx.compute(ctx.from_floats([1.0]).cast(ctx, DType.BF16))
        x.from_floats([1.0, 2.0, 3.0, 4.0])  # a leaf without an op stays on the host
        assert x.floats().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (on("CUDA:99"), "CUDA:99"),
        (BackendParams(options={"compiler": "inductor"}), "mode=compiled"),
        (
            BackendParams(options={"mode": "compiled", "compiler": "none"}),
            "no backend 'none'; it has .*inductor",
        ),
        (BackendParams(options={"extension": "no_such_module"}), "no_such_module"),
    ],
)
def test_what_torch_does_not_have_is_refused(params, message):
    with pytest.raises(OptionError, match=message):
        opened(params)


def test_half_of_the_layers_are_refused():
    with pytest.raises(OptionError, match="all layers"):
        backbay.open(MODEL, TorchBackend, on(private_device.ID, 1))


def test_a_device_that_does_not_work_is_refused_and_not_listed(monkeypatch):
    outcome = {"pydevice": DeviceTrial("out of order"), "cpu": DeviceTrial()}
    monkeypatch.setattr("backbay_torch.backend.trial_of", lambda device: outcome[device.type])
    with pytest.raises(BackendUnavailableError, match=r"PYDEVICE:0 .*out of order"):
        opened(on(private_device.ID))
    with opened(BackendParams()) as backend:
        assert [device.id for device in backend.devices()] == ["CPU:0"]
    assert TorchBackend.diagnose()[private_device.ID] == "not used: out of order"


def test_without_gpu_layers_the_first_device_that_works_is_taken():
    with opened(BackendParams()) as backend:
        assert backend.device == private_device.ID


def test_tf32_is_off_unless_it_is_asked_for():
    seen = []
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for options in ({}, {"tf32": "on"}):
            with opened(BackendParams(gpu_layers=GPULayersList(), options=options)) as backend:
                with backend.engine.settings():
                    seen.append(torch.get_float32_matmul_precision())
                seen.append(backend.precision(ops.mulmat, []).weight)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert seen == ["highest", DType.F32, "high", DType.F16]


def test_the_default_device_of_other_code_changes_nothing(backend):
    with torch.device("meta"):
        test_rotated_rows_are_those_of_numpy(backend)


def test_memory_that_torch_does_not_get_is_a_memory_error():
    with pytest.raises(MemoryError, match="DefaultCPUAllocator"), memory_errors():
        torch.empty(1 << 60)


def test_an_extension_that_breaks_the_import_of_torch_is_named_with_a_remedy(tmp_path):
    """As torch-opencl does: torch imports the extensions that are installed, and any error is its own."""
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nbroken = broken:load\n")
    (tmp_path / "broken.py").write_text("def load(): raise OSError('no driver')\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from backbay import BackendUnavailableError\n"
        "from backbay_torch import backbay_backend\n"
        "try: backbay_backend()\n"
        "except BackendUnavailableError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch cannot be imported" in ended.stdout
    assert "broken" in ended.stdout
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in ended.stdout


@pytest.mark.parametrize(
    "layers", [GPULayersList(), on(private_device.ID, 6).gpu_layers], ids=["CPU", "private"]
)
def test_the_tiny_model_answers_right(layers):
    engine = pytest.importorskip("backbay_engine")
    with engine.load(MODEL, backend=TorchBackend, params=BackendParams(gpu_layers=layers)) as llm:
        assert llm.generate("sum 417 268 =", temperature=0).text.strip() == "685"
