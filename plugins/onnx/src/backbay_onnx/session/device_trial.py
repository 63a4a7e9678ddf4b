"""Small sessions that show what a device can do: a GPU is only taken if a session was seen to run on it."""

from __future__ import annotations

import contextlib
import io
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from backbay import BackendUnavailableError

from .device import Device
from .runtime import runtime


@cache
def why_not(device: Device) -> str:
    """Why a device cannot be used; empty if a session was seen to run on it, with memory there."""
    ort, provider = runtime(), device.provider
    if provider.refused:
        return provider.refused
    if provider.name not in ort.get_available_providers():
        return f"this ONNX Runtime is built without it; remedy: {provider.remedy}"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries that it does not find
        ort.preload_dlls()
    try:
        doubled = _doubled(device, np.float32)
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class, and a driver may raise any
        return f"it does not work: {error}; remedy: {provider.remedy}"
    return "" if doubled == [2, 4] else f"it computes 2 * [1, 2] = {doubled}; remedy: {provider.remedy}"


@cache
def lacks_float16(device: Device) -> bool:
    """Whether a device cannot compute with float16, as a GPU without this feature of shaders."""
    if device.is_host:
        return False
    try:
        return _doubled(device, np.float16) != [2, 4]
    except Exception:  # noqa: BLE001  as above
        return True


def _doubled(device: Device, dtype: Any) -> list[float]:
    """1 and 2, doubled in place in the memory that sessions on the device are bound to."""
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        _doubling(dtype), options, providers=device.session_providers(), enable_fallback=0
    )
    if session.get_providers()[0] != device.provider.name:
        raise BackendUnavailableError("ONNX Runtime cannot start it, and would use the CPU instead")
    numbers = ort.OrtValue.ortvalue_from_numpy(np.array([1, 2], dtype), device.provider.memory, device.number)
    binding = session.io_binding()
    try:
        binding.bind_ortvalue_input("x", numbers)
        binding.bind_ortvalue_output("y", numbers)
        session.run_with_iobinding(binding)
    finally:
        del binding  # before its session, which it does not keep alive, also if the run fails
    doubled: list[float] = numbers.numpy().tolist()
    return doubled


def _doubling(dtype: Any) -> Any:
    """A model of y = x + x, serialized."""
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    x, y = [helper.make_tensor_value_info(name, kind, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "trial", [x], [y])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return model.SerializeToString()
