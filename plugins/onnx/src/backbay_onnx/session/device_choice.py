"""Which device sessions run on. A GPU is only taken if a session was seen to run on it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from backbay import BackendUnavailableError, GPULayers, OptionError
from backbay.plugin import CPU

from .device import HOST, Device, device_of
from .providers import GPU_PROVIDERS, HOST_PROVIDER
from .runtime import runtime


def choose(option: str, layers: Sequence[GPULayers] | None, blocks: int) -> Device:
    """The device that the option `provider` and `gpu_layers` ask for.

    A device that is asked for and missing is a BackendUnavailableError. Only "auto" falls back to the CPU.
    """
    named = [gpu for gpu in layers or () if gpu.layers]
    if layers is not None and not named:
        if option not in ("auto", HOST_PROVIDER.option):
            raise OptionError(f"option provider asks for {option}, but gpu_layers for the CPU alone")
        return HOST
    if named:
        device = _of_layers(named, blocks)
        if option not in ("auto", device.provider.option):
            raise OptionError(f"option provider asks for {option}, but gpu_layers for {device.id}")
        return _required(device)
    if option == HOST_PROVIDER.option:
        return HOST
    devices = [device_of(provider) for provider in GPU_PROVIDERS if option in ("auto", provider.option)]
    if option != "auto":
        return _required(devices[0])
    return next((device for device in devices if not why_not(device)), HOST)


def _required(device: Device) -> Device:
    if reason := why_not(device):
        raise BackendUnavailableError(f"{device.id} was asked for, but {reason}")
    return device


def _of_layers(named: Sequence[GPULayers], blocks: int) -> Device:
    """The device that all layers are put on."""
    first = named[0]
    given = sorted({layer for gpu in named for layer in gpu.layers})
    if len({gpu.id for gpu in named}) > 1 or (blocks and given != list(range(blocks + 1))):
        raise OptionError(
            f"gpu_layers must put all layers, 0 to {blocks}, on one device, or none: a session runs on one device; "
            f"got {[str(gpu) for gpu in named]}"
        )
    prefix, _, number = first.id.partition(":")
    for provider in GPU_PROVIDERS:
        if prefix == provider.prefix and number.isdecimal():
            return device_of(provider, int(number))
    known = ", ".join(f"{provider.prefix}:n" for provider in GPU_PROVIDERS)
    raise OptionError(f"gpu_layers names {first.id!r}; devices of this backend are {CPU} and {known}")


@cache
def why_not(device: Device) -> str:
    """Why a device cannot be used; empty if a session was seen to run on it, with memory there."""
    ort, provider = runtime(), device.provider
    if provider.name not in ort.get_available_providers():
        return f"this ONNX Runtime is built without it; remedy: {provider.remedy}"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries that it does not find
        ort.preload_dlls()
    try:
        _run_once(device)
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class, and a driver may raise any
        return f"it does not work: {error}; remedy: {provider.remedy}"
    return ""


def _run_once(device: Device) -> None:
    """Double two numbers in the device's memory, in place."""
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(_doubling(), options, providers=device.session_providers())
    if session.get_providers()[0] != device.provider.name:
        raise BackendUnavailableError("ONNX Runtime cannot start it, and would use the CPU instead")
    numbers = ort.OrtValue.ortvalue_from_numpy(
        np.array([1, 2], np.float32), device.provider.memory, device.number
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", numbers)
    binding.bind_ortvalue_output("y", numbers)
    session.run_with_iobinding(binding)
    if numbers.numpy().tolist() != [2, 4]:
        raise BackendUnavailableError(f"{device.id} computes 2 * [1, 2] = {numbers.numpy().tolist()}")


def _doubling() -> Any:
    """A model of y = x + x, serialized."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "probe", value[:1], value[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return model.SerializeToString()
