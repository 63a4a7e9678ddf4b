"""The backend on the CPU, and on platforms that JAX does not have. The conformance suite tests everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import backbay
from backbay import BackendParams, BackendUnavailableError, DType, GPULayers, GPULayersList, OptionError, ops
from backbay.kernels import DeviceTrial

jax = pytest.importorskip("jax")

from vision_tasks import TASKS, unseen_questions  # noqa: E402

from backbay_jax import backbay_backend  # noqa: E402
from backbay_jax.devices import device_info, library_of, platform_name  # noqa: E402
from backbay_jax.engine import trial_of  # noqa: E402

JaxBackend = backbay_backend()
MODELS = Path(__file__).parents[3] / "examples/models"
LIBC = next(Path("/").glob("lib*/**/libc.so.6"), None)  # a library that is no plugin


def opened(model: Path | None = None, /, **options: str) -> backbay.Backend:
    return backbay.open(model, JaxBackend, BackendParams(options=options))


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_a_graph_runs_again_on_other_data(mode):
    with opened(mode=mode) as backend, backend.new_context() as ctx:
        w = ctx.from_floats([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])  # f32[2,3]: dimension 0 is the innermost
        x = ctx.from_floats([[1.0, 1.0]])
        y = w.mulmat(ctx, x).silu(ctx)
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [2.857722, 6.993622, 10.999816], rtol=1e-6)
        x.from_floats([[1.0, 0.0]])
        ctx.compute(y)
        np.testing.assert_allclose(y.floats(), [0.7310586, 2.857722, 4.966536], rtol=1e-6)


@pytest.mark.parametrize("mode", ["compiled", "eager"])
def test_a_written_leaf_keeps_the_rest_of_its_numbers(mode):
    with opened(mode=mode) as backend, backend.new_context() as ctx:
        cache, x = ctx.zeros(DType.BF16, 2, 3), ctx.from_floats([[1.0, 4.0]])
        for row in (1, 2):
            ctx.compute(x.sqrt(ctx).copy(ctx, cache.slice(ctx, 1, row, row + 1)))
        assert cache.floats().tolist() == [0, 0, 1, 2, 1, 2]
        assert backend.engine.donates == (mode == "compiled")


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_a_triangle_is_solved_whatever_lies_in_its_other_half(lower, unit):
    a = np.where(
        np.tri(3, dtype=bool) if lower else np.tri(3, dtype=bool).T, [[2, 9, 8], [3, 5, 7], [4, 6, 3]], np.nan
    )
    b = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    with opened() as backend, backend.new_context() as ctx:
        x = ctx.from_floats(a).solve_tri(ctx, ctx.from_floats(b), lower=lower, left=True, unit_diagonal=unit)
        ctx.compute(x)
        triangle = np.nan_to_num(a)
        if unit:
            np.fill_diagonal(triangle, 1)
        np.testing.assert_allclose(x.floats().reshape(3, 2), np.linalg.solve(triangle, b), rtol=1e-5)


def test_everything_lies_on_the_device_that_is_chosen():
    """A second device of the CPU stands for one of another platform."""
    program = (
        "import jax, backbay, backbay_jax.backend as b\n"
        "host, other = jax.devices('cpu')\n"
        "b.jax_devices = lambda option: {'CPU:0': host, 'FAKE:0': other}\n"
        "with backbay.open(None, b.JaxBackend) as backend, backend.new_context() as ctx:\n"
        "    x = ctx.from_floats([1.0, 4.0])\n"
        "    y = x.sqrt(ctx).add(ctx, ctx.from_floats([1.0, 1.0]))\n"
        "    ctx.compute(y)\n"
        "    assert x.leaf.buffer.storage.devices() == {other}, x.leaf.buffer.storage.devices()\n"
        "    assert jax.devices()[0] == host\n"
        "    print(backend.device, y.floats(), [(d.id, d.is_gpu) for d in backend.devices()])\n"
        "    print([(gpu.id, gpu.total() > 0) for gpu in backend.memory().gpus])\n"
    )
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **devices},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.stderr == ""
    assert ended.stdout == ("FAKE:0 [2. 3.] [('CPU:0', False), ('FAKE:0', True)]\n[('FAKE:0', True)]\n")


def test_a_device_has_the_memory_that_its_platform_tells():
    told = {"bytes_limit": 4 << 30, "bytes_in_use": 1 << 30}
    known = device_info("TPU:0", SimpleNamespace(device_kind="TPU v9", memory_stats=lambda: told))
    assert (known.name, known.is_gpu, known.total_memory, known.free_memory) == (
        "TPU v9",
        True,
        4 << 30,
        3 << 30,
    )
    silent = device_info("XPU:0", SimpleNamespace(device_kind="xpu", memory_stats=lambda: None))
    assert (silent.total_memory, silent.free_memory) == (None, None)


def test_a_dtype_that_the_device_lacks_is_declared_unsupported(monkeypatch):
    monkeypatch.setattr(
        "backbay_jax.backend.trial_of", lambda device: DeviceTrial(lacks=frozenset({DType.BF16}))
    )
    with opened() as backend, backend.new_context() as ctx:
        support = backend.supports(ops.neg, [ctx.empty(DType.BF16, 4)])
        assert not support
        assert support.reason == "CPU:0 has no bf16"
        with pytest.raises(backbay.RefusalError, match="has no bf16"):
            ctx.compute(ctx.from_floats([1.0]).cast(ctx, DType.BF16))


def test_the_cpu_has_all_dtypes_and_flushes_subnormals():
    assert trial_of(jax.devices("cpu")[0]) == DeviceTrial(flushes_subnormals=True)


def test_products_are_as_precise_as_declared():
    seen = []
    for options in ({}, {"precision": "high"}, {"precision": "default"}):
        with opened(**options) as backend:
            with backend.engine.settings():
                seen.append(jax.config.jax_default_matmul_precision)
            seen.append(backend.precision(ops.mulmat, []).weight)
            assert backend.precision(ops.add, []).activation is DType.F32
    assert seen == ["highest", DType.F32, "high", DType.F16, "default", DType.BF16]


@pytest.mark.parametrize(
    ("platform", "kind", "message"),
    [
        ("warp", BackendUnavailableError, "no platform 'warp'.*remedy: install its plugin"),
        ("/no/plugin.so", OptionError, "there is no file /no/plugin.so"),
        (__file__, OptionError, "JAX is in use in this process"),
    ],
)
def test_a_platform_that_jax_does_not_have_is_refused_with_a_remedy(platform, kind, message):
    jax.devices()
    with pytest.raises(kind, match=message):
        opened(platform=platform)


def test_layers_on_a_device_that_is_not_there_are_refused():
    params = BackendParams(gpu_layers=GPULayersList([GPULayers("CUDA:0", range(1))]))
    with pytest.raises(OptionError, match="'CUDA:0'; the devices are CPU:0"):
        backbay.open(None, JaxBackend, params)


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(LIBC is None, reason="no libc.so.6 here")
def test_a_library_that_is_no_plugin_is_refused():
    program = (
        "import backbay; from backbay_jax import backbay_backend\n"
        f"params = backbay.BackendParams(options={{'platform': {str(LIBC)!r}}})\n"
        "try: backbay.open(None, backbay_backend(), params)\n"
        "except backbay.BackendUnavailableError as error: print(error)"
    )
    assert "is no PJRT plugin that JAX can load" in run(program)


def test_a_library_is_registered_by_the_name_of_its_file_and_takes_no_default(tmp_path, monkeypatch):
    """Of a platform by path nothing is asked but its registration: no plugin is here to be loaded."""
    library, seen = tmp_path / "libpjrt_fake.so", []
    library.touch()
    bridge = SimpleNamespace(
        backends_are_initialized=lambda: False, register_plugin=lambda name, **more: seen.append((name, more))
    )
    monkeypatch.setattr("backbay_jax.devices.xla_bridge", bridge)
    assert platform_name(str(library)) == platform_name(str(library)) == "pjrt_fake"
    assert seen == [("pjrt_fake", {"library_path": str(library), "priority": -1})]


def test_a_package_names_the_library_that_it_has(tmp_path, monkeypatch):
    record = tmp_path / "a_pjrt-1.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.with_name("METADATA").write_text("Metadata-Version: 2.1\nName: a-pjrt\nVersion: 1.0\n")
    record.write_text("a_pjrt/__init__.py,,\na_pjrt/a_pjrt_plugin.so,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert library_of("a-pjrt") == str(tmp_path / "a_pjrt" / "a_pjrt_plugin.so")
    assert library_of("cpu") == library_of("") == library_of("pytest") == ""


def test_without_jax_the_remedy_is_named():
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "from backbay import BackendUnavailableError; from backbay_jax import backbay_backend\n"
        "try: backbay_backend()\n"
        "except BackendUnavailableError as error: print(error)"
    )
    assert "JAX cannot be imported" in (said := run(program))
    assert "pip install" in said


def test_the_tiny_model_answers_right():
    engine = pytest.importorskip("backbay_engine")
    with engine.load(MODELS / "backbay-tiny-f16.gguf", backend=JaxBackend) as llm:
        assert llm.generate("sum 417 268 =", temperature=0).text.strip() == "685"


def test_the_tiny_model_that_sees_answers_as_the_reference_does():
    engine = pytest.importorskip("backbay_engine")
    asked = [(picture, question.text) for task in TASKS for picture, question in unseen_questions(task, 1)]

    def answers(backend):
        text, projector = (MODELS / f"{start}backbay-tiny-vision-f16.gguf" for start in ("", "mmproj-"))
        with engine.load(text, projector=projector, backend=backend, context=128) as llm:
            for picture, question in asked:
                content = [{"type": "image", "image": picture}, {"type": "text", "text": question}]
                yield llm.chat([{"role": "user", "content": content}], max_tokens=8, temperature=0).text

    given = [*answers(JaxBackend)]
    assert given == [*answers("cpu_ref")]
    assert all(given)
