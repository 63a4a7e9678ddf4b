"""The layers of a model on GPUs, and the places of its tensors."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import OptionError

MAX_LAYERS = 1 << 16  # more than any model has: memory reports have an entry for each layer


@dataclass(frozen=True)
class Placement:
    """Host memory, the device of a model's layer, or (neither given) any place."""

    host: bool = False
    layer: int | None = None


@dataclass(frozen=True)
class GPULayers:
    """The layers on one device; the index after the last block is the output layer."""

    id: str
    layers: tuple[int, ...]

    def __init__(self, id: str, layers: Iterable[int]) -> None:
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "layers", tuple(sorted(layers)))

    def __str__(self) -> str:
        if not self.layers:
            return ""
        first, last, count = self.layers[0], self.layers[-1], len(self.layers)
        if last - first + 1 == count:
            return f"ID:{self.id} Layers:{count}({first}..{last})"
        return f"ID:{self.id} Layers:{count}[{' '.join(map(str, self.layers))}]"


class GPULayersList(list[GPULayers]):
    """The layers of all devices. Prints as `3[ID:CUDA:0 Layers:3(0..2)]`."""

    def __str__(self) -> str:
        listed = f"[{' '.join(map(str, self))}]"
        return f"{self.sum()}{listed}" if self.sum() else listed

    def sum(self) -> int:
        return sum(len(gpu.layers) for gpu in self)

    def hash(self) -> int:
        """A 64-bit hash of the assignment, the same on every machine and in every run."""
        from hashlib import blake2b  # takes longer to import than most of core

        digest = blake2b(digest_size=8)
        for gpu in self:
            if gpu.layers:
                digest.update(struct.pack("<q", len(gpu.id)) + gpu.id.encode())
                digest.update(struct.pack(f"<{len(gpu.layers)}q", *gpu.layers))
        return int.from_bytes(digest.digest(), "little")


def assign_layers(
    layer_sizes: Sequence[int],
    free_memory: Sequence[tuple[str, int]],
    *,
    num_gpu_layers: int | None = None,
    main_gpu: int = 0,
    tensor_split: Sequence[float] = (),
) -> GPULayersList:
    """Convert older settings (num_gpu_layers, main_gpu, tensor_split) to a GPULayersList.

    `layer_sizes` are the bytes of each block and, last, of the output layer; `free_memory` pairs each GPU's id with
    its free bytes. The last `num_gpu_layers` layers go to GPUs (None or a negative number: all layers that fit). Each
    GPU gets a contiguous run. GPUs come in their order, but `main_gpu` comes last, so it holds the output layer.
    `tensor_split` gives the GPUs' shares; without it each GPU is filled up to its free memory, from the output layer
    down.
    """
    if not free_memory:
        return GPULayersList()
    if not 0 <= main_gpu < len(free_memory):
        raise OptionError(f"main_gpu must be in [0, {len(free_memory)}), got {main_gpu}")
    count, devices = len(layer_sizes), len(free_memory)
    automatic = num_gpu_layers is None or num_gpu_layers < 0
    wanted = count if automatic else min(num_gpu_layers or 0, count)
    order = [main_gpu, *(i for i in reversed(range(devices)) if i != main_gpu)]
    split = list(tensor_split)
    shares = _shares(wanted, devices, split) if split else [count] * devices
    runs: list[GPULayers] = []
    layer = count - 1
    for i in order:
        id, free = free_memory[i]
        # With an explicit number every layer gets a GPU: layers that fit nowhere go to the last device.
        forced = not automatic and (bool(split) or i == order[-1])
        taken: list[int] = []
        while layer >= count - wanted and len(taken) < shares[i] and (forced or layer_sizes[layer] <= free):
            free -= layer_sizes[layer]
            taken.append(layer)
            layer -= 1
        runs.append(GPULayers(id, taken))
    return GPULayersList(run for run in reversed(runs) if run.layers)


def _shares(count: int, devices: int, split: Sequence[float]) -> list[int]:
    """Divide `count` layers in proportion to `split`; rounding the cuts, not the shares, loses no layer."""
    if len(split) != devices or not all(share >= 0 for share in split) or not 0 < sum(split) < math.inf:
        rule = f"tensor_split must give {devices} shares, none negative, not all 0"
        raise OptionError(f"{rule}, got {list(split)}")
    ends = [round(count * sum(split[: i + 1]) / sum(split)) for i in range(devices)]
    return [end - start for start, end in zip([0, *ends[:-1]], ends, strict=True)]
