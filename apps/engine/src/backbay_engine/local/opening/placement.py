"""Opens models with their layers on GPUs: as many as fit with their caches and graphs, fewer where that is refused."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import backbay
from backbay import (
    AllocationStatus,
    BackendMemory,
    DeviceInfo,
    GPULayersList,
    NoMemoryError,
    OptionError,
    assign_layers,
)
from backbay.discovery import open_model
from backbay.gguf import ModelFile
from backbay.plugin import Cancel, check_cancel

from ...models.keys import BLOCK_COUNT
from ...port.options import BackendName, LoadOptions, Path
from ..port import LocalPort

log = logging.getLogger(__name__)

TRIES = 3  # with fewer layers, the last with none
UNKNOWN = 1 << 62  # bytes; of a device that does not say how much is free


def open_port(
    path: Path, backend: BackendName | None, options: LoadOptions, cancel: Cancel | None = None
) -> LocalPort:
    """A model in this process, its layers placed as the options say. By default GPUs take as many of the last layers as
    fit with their caches and graphs; where that is refused, fewer do. NoMemoryError if the model fits nowhere.
    """
    try:
        port = _open(path, backend, options, cancel)
    except NoMemoryError as error:
        error.memory.log(log)
        raise
    port.memory().log(log)
    return port


def _open(path: Path, backend: BackendName | None, options: LoadOptions, cancel: Cancel | None) -> LocalPort:
    if options.params.gpu_layers is not None:
        return LocalPort(path, backend, options)
    if options.num_gpu_layers == 0:
        return LocalPort(path, backend, _placed(options, GPULayersList()))
    with backbay.open(None, backend, replace(options.params, alloc_memory=False)) as bare:
        gpus = [device for device in bare.devices() if device.is_gpu]
        name, splits = bare.name, bare.splits_layers
    if not gpus:
        if options.num_gpu_layers is not None:
            told = f"{options.num_gpu_layers} layers are wanted on GPUs: {name} has none on this machine"
            log.warning("%s, so all layers stay on the CPU", told)
        return LocalPort(path, backend, options)
    if options.num_gpu_layers is not None:
        with open_model(path) as file:
            sizes, room = layer_sizes(file), rooms(gpus, options.params.max_memory)
        layers = LayerPlanner(sizes, room, Counter(), options).plan()
        return LocalPort(path, backend, _placed(options, layers))
    return _open_as_it_fits(path, backend, options, gpus, cancel, splits=splits)


def _open_as_it_fits(
    path: Path,
    backend: BackendName | None,
    options: LoadOptions,
    gpus: Sequence[DeviceInfo],
    cancel: Cancel | None,
    *,
    splits: bool,
) -> LocalPort:
    planner = _measured(path, backend, options, gpus) if splits else None
    layers = _whole(path, options, gpus) if planner is None else planner.plan()
    placed, on_cpu, refused = _placed(options, layers), False, None
    for left in reversed(range(TRIES + 1)):
        check_cancel(cancel)
        try:
            return LocalPort(path, backend, placed)
        except OptionError:
            if refused is None:
                raise
            raise refused from None  # an option demands the GPU that was short
        except NoMemoryError as error:
            if on_cpu or not short_gpus(error.memory):
                raise
            refused = error.with_traceback(None)
        if planner is None or not layers or left == 1:
            layers, on_cpu, placed = GPULayersList(), True, _without_gpus(options)
        else:
            layers = planner.fewer(refused.memory, surely=left == 2)
            placed = _placed(options, layers)
        log.warning("%s; trying again with %s", str(refused).partition("\n")[0], on_gpus(layers))
    raise AssertionError("the last try returns or raises")


def _whole(path: Path, options: LoadOptions, gpus: Sequence[DeviceInfo]) -> GPULayersList | None:
    """All layers of a backend that splits none, on the GPU that is asked for; None if the backend chooses it."""
    if not options.main_gpu and not options.tensor_split:
        return None
    with open_model(path) as file:
        count = len(layer_sizes(file))
    return LayerPlanner([0] * count, {gpu.id: 0 for gpu in gpus}, Counter(), options).plan()


def _measured(
    path: Path, backend: BackendName | None, options: LoadOptions, gpus: Sequence[DeviceInfo]
) -> LayerPlanner:
    """A planner that knows what each layer takes with its cache, and what graphs and companions take beside it."""
    dry = replace(options, params=replace(options.params, alloc_memory=False), queue=None, cache_dir=None)
    port = LocalPort(path, backend, dry)
    try:
        memory = port.memory()
    finally:
        port.close()
    graph = max((each.graph.size for each in memory.gpus), default=0) or memory.cpu.graph.size
    beside = Counter({gpu.id: graph for gpu in gpus})
    for companion in memory.companions.values():
        beside.update({device.id: device.total() for device in companion.gpus})
    room = {id: free - beside[id] for id, free in rooms(gpus, options.params.max_memory).items()}
    return LayerPlanner(layer_costs(memory), room, beside, options)


@final
class LayerPlanner:
    """Places layers on GPUs by their bytes.

    costs   the bytes of each layer, the output last
    room    the bytes that layers may take, by GPU
    beside  the bytes of graphs and companions, by GPU
    """

    def __init__(
        self, costs: Sequence[int], room: dict[str, int], beside: Counter[str], options: LoadOptions
    ) -> None:
        self._costs, self._room, self._beside, self._options = costs, room, beside, options
        self._sure = Counter[str]()  # bytes that a GPU gave, less those beside its layers

    def plan(self) -> GPULayersList:
        """The layers of each GPU."""
        options = self._options
        self._planned = assign_layers(
            self._costs,
            list(self._room.items()),
            num_gpu_layers=options.num_gpu_layers,
            main_gpu=options.main_gpu,
            tensor_split=options.tensor_split,
        )
        return self._planned

    def fewer(self, memory: BackendMemory, *, surely: bool) -> GPULayersList:
        """A plan with fewer layers on the GPUs that were short: as many as what they gave surely holds, or half-way
        between that and what was asked for.
        """
        given = {gpu.id: gpu.allocated() for gpu in memory.gpus}
        asked = {gpu.id: sum(self._costs[layer] for layer in gpu.layers) for gpu in self._planned}
        for id in short_gpus(memory) & asked.keys():
            self._sure[id] = sure = max(self._sure[id], given.get(id, 0) - self._beside[id])
            self._room[id] = min(sure if surely else (sure + asked[id]) // 2, asked[id] - 1)
        return self.plan()


def _placed(options: LoadOptions, layers: GPULayersList | None) -> LoadOptions:
    params = replace(options.params, gpu_layers=layers)
    return replace(options, params=params, num_gpu_layers=None, main_gpu=0, tensor_split=())


def _without_gpus(options: LoadOptions) -> LoadOptions:
    """The options with all on the CPU, also companions whose parameters do not say otherwise."""
    layers = GPULayersList()
    own = {"encoder_params": options.encoder_params, "draft_params": options.draft_params}
    moved: dict[str, Any] = {
        name: replace(params, gpu_layers=layers)
        for name, params in own.items()
        if params is not None and params.gpu_layers is None
    }
    return replace(_placed(options, layers), **moved)


def rooms(gpus: Sequence[DeviceInfo], limits: Mapping[str, int]) -> dict[str, int]:
    """The free bytes of each GPU, or its limit where that is less."""
    free = {gpu.id: UNKNOWN if gpu.free_memory is None else gpu.free_memory for gpu in gpus}
    return {id: min(size, limits.get(id, size)) for id, size in free.items()}


def on_gpus(layers: GPULayersList) -> str:
    """A placement in words."""
    told = ", ".join(f"{len(gpu.layers)} layer{'s'[: len(gpu.layers) > 1]} on {gpu.id}" for gpu in layers)
    return told or "no layers on GPUs"


def short_gpus(memory: BackendMemory) -> set[str]:
    """The GPUs where an allocation failed."""
    failed = AllocationStatus.Failed
    parts = (memory, *memory.companions.values())
    return {
        gpu.id for part in parts for gpu in part.gpus if any(each.status is failed for each in gpu.entries())
    }


def layer_costs(memory: BackendMemory) -> list[int]:
    """The bytes of each layer with its cache, wherever they lie."""
    count = max(len(device.weights) for device in memory.devices)
    costs = [0] * count
    for device in memory.devices:
        for entries in (device.weights, device.cache):
            for layer, entry in enumerate(entries[:count]):
                costs[layer] += entry.size
    return costs


def layer_sizes(file: ModelFile) -> list[int]:
    """The bytes of each block's weights and, last, of the output's."""
    blocks = BLOCK_COUNT.of(file.metadata)
    sizes = [0] * (blocks + 1)
    for tensor in file.tensors.values():
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block is not None and int(block[1]) < blocks:
            sizes[int(block[1])] += tensor.nbytes
        elif tensor.name.startswith("output"):
            sizes[-1] += tensor.nbytes
    return sizes
