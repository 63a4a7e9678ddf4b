"""The layers of a model on devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from backbay import GPULayersList, OptionError, Placement, assign_layers

from .device import Device

SPARE = 10  # one part in ten of a device's memory is left for caches and graphs


@final
class LayerAssignment:
    """The device of each layer. Tensors of no layer go with the output layer, inputs to the CPU."""

    def __init__(self, devices: Sequence[Device], layers: Mapping[int, Device], rest: Device) -> None:
        self.cpu, self._layers, self._rest = devices[0], layers, rest
        used = {rest.id, *[device.id for device in layers.values()]}
        self.others = [device for device in devices if device.id in used and not device.is_cpu]

    def device(self, placement: Placement) -> Device:
        if placement.host:
            return self.cpu
        return self._rest if placement.layer is None else self._layers.get(placement.layer, self._rest)


def assign_without_model(devices: Sequence[Device], given: GPULayersList | None) -> LayerAssignment:
    """Everything on the first GPU, or layers by `gpu_layers`, the rest on the CPU."""
    if given is None:
        return LayerAssignment(devices, {}, devices[min(1, len(devices) - 1)])
    return LayerAssignment(devices, _by_layer(devices, given), devices[0])


def assign_layers_of_model(
    devices: Sequence[Device], given: GPULayersList | None, sizes: Sequence[int], limits: Mapping[str, int]
) -> LayerAssignment:
    """Layers by `gpu_layers`; without it, GPUs take as many of the last layers as fit. `sizes` are bytes by layer."""
    gpus = devices[1:]
    if given is None:
        room = [(gpu.id, _room(gpu, limits)) for gpu in gpus]
        given = assign_layers(sizes, room)
    beyond = [layer for gpu in given for layer in gpu.layers if not 0 <= layer < len(sizes)]
    if beyond:
        raise OptionError(
            f"gpu_layers names layer {beyond[0]}; the model's are 0 to {len(sizes) - 1}, the output last"
        )
    layers = dict.fromkeys(range(len(sizes)), devices[0]) | _by_layer(devices, given)
    return LayerAssignment(devices, layers, layers[len(sizes) - 1])


def _by_layer(devices: Sequence[Device], given: GPULayersList) -> dict[int, Device]:
    known = {device.id: device for device in devices}
    found: dict[int, Device] = {}
    for gpu in given:
        for layer in gpu.layers:
            if found.setdefault(layer, known[gpu.id]) is not known[gpu.id]:
                raise OptionError(f"gpu_layers puts layer {layer} on {found[layer].id} and on {gpu.id}")
    return found


def _room(device: Device, limits: Mapping[str, int]) -> int:
    free, _total = device.memory()
    room = min(free, limits.get(device.id, free))
    return room - room // SPARE
