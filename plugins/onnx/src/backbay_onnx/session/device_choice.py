"""Which device sessions run on."""

from __future__ import annotations

from collections.abc import Sequence

from backbay import BackendUnavailableError, GPULayers, OptionError
from backbay.plugin import CPU

from .device import HOST, Device, device_of
from .device_trial import why_not
from .providers import GPU_PROVIDERS, HOST_PROVIDER


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
    if option == "auto":
        devices = [device_of(provider) for provider in GPU_PROVIDERS if provider.automatic]
        return next((device for device in devices if not why_not(device)), HOST)
    return _required(next(device_of(provider) for provider in GPU_PROVIDERS if provider.option == option))


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
