"""Devices that sessions run on: which one is chosen, and small sessions that show what it can do."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from backbay import BackendUnavailableError, GPULayers, OptionError
from backbay.plugin import CPU

from .providers import GPU_PROVIDERS, HOST_PROVIDER, ProviderInfo
from .runtime import DISTRIBUTIONS, is_installed, load_runtime


@dataclass(frozen=True)
class Device:
    """A device by our id, and by its provider and number in ONNX Runtime."""

    id: str
    provider: ProviderInfo
    number: int = 0
    records: bool = False  # whether its sessions are to record runs

    def __post_init__(self) -> None:
        if self.records:
            _RECORDING.set()

    @property
    def unrecorded(self) -> Device:
        return replace(self, records=False)

    @property
    def is_host(self) -> bool:
        return self.id == CPU

    @property
    def has_memory(self) -> bool:
        """Whether leaves and weights lie in memory of the device, which Python can only copy from and to."""
        return self.provider.has_memory

    def alone(self) -> AbstractContextManager[Any]:
        """While the device is used, if two threads must not do so at the same time.

        What another thread asks of CUDA while a run is recorded would end the recording.
        """
        records = bool(self.provider.recording) and _RECORDING.is_set()
        return _ALONE if self.provider.one_at_a_time or records else nullcontext()

    def session_providers(self, limit: int | None = None) -> list[Any]:
        """Providers for a session, best first; `limit` is the most bytes of device memory that it may take."""
        settings = self.provider.settings(self.number, limit)
        if self.records:
            settings = {**settings, self.provider.recording: "1"}
        own = (self.provider.name, settings) if settings else self.provider.name
        return [own] if self.provider.name == HOST_PROVIDER.name else [own, HOST_PROVIDER.name]

    def check(self, session: Any) -> None:
        """Refuse a session on another provider: ONNX Runtime leaves out a provider that it cannot start."""
        found = session.get_providers()[0]
        if found != self.provider.name:
            raise BackendUnavailableError(
                f"{self.id} was asked for, but ONNX Runtime uses {found}; is {self.provider.driver} installed?"
            )


_ALONE = threading.RLock()
_RECORDING = threading.Event()  # set once a device of this process is to record runs
HOST = Device(CPU, HOST_PROVIDER)


def provider_device(provider: ProviderInfo, number: int = 0) -> Device:
    return Device(f"{provider.prefix}:{number}", provider, number)


@cache
def why_unusable(device: Device) -> str:
    """Why a device cannot be used; empty if a session was seen to run on it, with memory there."""
    ort, provider = load_runtime(), device.provider
    if provider.refused:
        return provider.refused
    if provider.name not in ort.get_available_providers():
        return f"not part of the installed ONNX Runtime; to have it: {installation(provider)}"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the libraries that it does not find
        ort.preload_dlls()
    try:
        doubled = _doubled(device, np.float32)
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no base class, and a driver may raise any
        return f"it does not work: {error}; is {provider.driver} installed?"
    return (
        "" if doubled == [2, 4] else f"it computes 2 * [1, 2] = {doubled}; is {provider.driver} up to date?"
    )


def installation(provider: ProviderInfo) -> str:
    """How to install a provider in place of the distribution of ONNX Runtime that is installed."""
    there = " ".join(name for name in DISTRIBUTIONS if is_installed(name))
    return f"{f'pip uninstall {there}, then ' if there else ''}pip install {provider.install}"


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
    ort, device = load_runtime(), device.unrecorded
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        doubling(dtype), options, providers=device.session_providers(), enable_fallback=0
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


def doubling(dtype: Any) -> Any:
    """A model of y = x + x, serialized."""
    kind = TensorProto.FLOAT if dtype is np.float32 else TensorProto.FLOAT16
    x, y = [helper.make_tensor_value_info(name, kind, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "trial", [x], [y])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return model.SerializeToString()


def choose_device(option: str, layers: Sequence[GPULayers] | None, blocks: int) -> Device:
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
    if option == "auto":
        devices = [provider_device(provider) for provider in GPU_PROVIDERS if provider.automatic]
        return next((device for device in devices if not why_unusable(device)), HOST)
    return _required(
        next(provider_device(provider) for provider in GPU_PROVIDERS if provider.option == option)
    )


def _required(device: Device) -> Device:
    if reason := why_unusable(device):
        raise BackendUnavailableError(f"{device.id} was asked for, but {reason}")
    return device


def _of_layers(named: Sequence[GPULayers], blocks: int) -> Device:
    """The device that layers are put on."""
    first = named[0]
    if len({gpu.id for gpu in named}) > 1:
        raise OptionError(
            "gpu_layers must name one GPU; layers that it does not name are on the CPU: a session of ONNX Runtime has "
            f"each execution provider once; got {[str(gpu) for gpu in named]}"
        )
    beyond = [layer for gpu in named for layer in gpu.layers if not 0 <= layer <= blocks]
    if blocks and beyond:
        raise OptionError(
            f"gpu_layers names layer {beyond[0]}; the model's are 0 to {blocks}, the output last"
        )
    prefix, _, number = first.id.partition(":")
    for provider in GPU_PROVIDERS:
        if prefix == provider.prefix and number.isdecimal():
            return provider_device(provider, int(number))
    known = ", ".join(f"{provider.prefix}:n" for provider in GPU_PROVIDERS)
    raise OptionError(f"gpu_layers names {first.id!r}; devices of this backend are {CPU} and {known}")
