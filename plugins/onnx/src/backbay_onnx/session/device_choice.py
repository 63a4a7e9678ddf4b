"""Where sessions run: on the CPU, or on a GPU through CUDA, which is only taken if it was seen to work."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from backbay import BackendUnavailableError, GPULayers, OptionError

from .runtime import CPU, runtime

CUDA = "CUDAExecutionProvider"
REMEDY = "pip uninstall onnxruntime, pip install backbay-onnx[cuda], and see that a driver for CUDA is there"


@dataclass(frozen=True)
class Device:
    """A device by our id, and by ONNX Runtime's names."""

    id: str
    kind: str
    number: int
    provider: str

    @property
    def is_host(self) -> bool:
        """Whether its memory is ours to read and write."""
        return self.id == CPU

    def providers(self, limit: int | None = None) -> list[Any]:
        """What a session is created with; `limit` is the most bytes of device memory that it may take."""
        if self.provider != CUDA:
            return [self.provider]
        options = {
            "device_id": str(self.number),
            "arena_extend_strategy": "kSameAsRequested",
            "cudnn_conv_algo_search": "HEURISTIC",  # the default tries all at the first run
            "use_tf32": "0",  # float32 is to mean float32
        }
        if limit is not None:
            options["gpu_mem_limit"] = str(limit)
        return [(CUDA, options), "CPUExecutionProvider"]

    def check(self, session: Any) -> None:
        """ONNX Runtime goes on without a provider that it cannot start."""
        found = session.get_providers()[0]
        if found != self.provider:
            raise BackendUnavailableError(
                f"{self.id} was asked for, but ONNX Runtime uses {found}; remedy: {REMEDY}"
            )


HOST = Device(CPU, "cpu", 0, "CPUExecutionProvider")


def cuda(number: int) -> Device:
    return Device(f"CUDA:{number}", "cuda", number, CUDA)


def choose(option: str, layers: Sequence[GPULayers] | None, blocks: int) -> Device:
    """The device that an option (auto, cpu, cuda) and `gpu_layers` ask for.

    What is asked for and missing is a BackendUnavailableError; only "auto" goes on without a GPU.
    """
    named = [gpu for gpu in layers or () if gpu.layers]
    if layers is not None and not named:
        if option == "cuda":
            raise OptionError("option provider asks for cuda, but gpu_layers for the CPU alone")
        return HOST
    device = _of_layers(named, blocks) if named else cuda(0)
    if option == "cpu":
        if named:
            raise OptionError(f"option provider asks for cpu, but gpu_layers for {device.id}")
        return HOST
    reason = why_not(device)
    if not reason:
        return device
    if named or option == "cuda":
        raise BackendUnavailableError(f"{device.id} was asked for, but {reason}")
    return HOST


def _of_layers(named: Sequence[GPULayers], blocks: int) -> Device:
    first = named[0]
    given = sorted({layer for gpu in named for layer in gpu.layers})
    if len({gpu.id for gpu in named}) > 1 or (blocks and given != list(range(blocks + 1))):
        raise OptionError(
            f"gpu_layers must put all layers, 0 to {blocks}, on one device, or none: a session runs on one device; "
            f"got {[str(gpu) for gpu in named]}"
        )
    kind, _, number = first.id.partition(":")
    if kind != "CUDA" or not number.isdecimal():
        raise OptionError(f"gpu_layers names {first.id!r}; devices of this backend are {CPU} and CUDA:n")
    return cuda(int(number))


@cache
def why_not(device: Device) -> str:
    """Why a device cannot be used; empty if a session was seen to run on it, with memory there."""
    ort = runtime()
    if device.provider not in ort.get_available_providers():
        return f"this ONNX Runtime is built without it; remedy: {REMEDY}"
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it misses
        ort.preload_dlls()
    try:
        _run_once(device)
    except Exception as error:  # noqa: BLE001  ONNX Runtime's errors share no root, and a driver may raise any
        return f"it does not work: {error}; remedy: {REMEDY}"
    return ""


def _run_once(device: Device) -> None:
    """Double two numbers in the device's memory, in place."""
    ort = runtime()
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "probe", value[:1], value[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=device.providers())
    if session.get_providers()[0] != device.provider:
        raise BackendUnavailableError("ONNX Runtime cannot start it, and would use the CPU instead")
    numbers = ort.OrtValue.ortvalue_from_numpy(np.array([1, 2], np.float32), device.kind, device.number)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", numbers)
    binding.bind_ortvalue_output("y", numbers)
    session.run_with_iobinding(binding)
    if numbers.numpy().tolist() != [2, 4]:
        raise BackendUnavailableError(f"{device.id} computes 2 * [1, 2] = {numbers.numpy().tolist()}")
