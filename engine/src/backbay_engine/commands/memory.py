"""Show the memory that a model would take, by device and layer, and whether it fits; allocates nothing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import backbay
from backbay import BackendMemory, DeviceInfo
from backbay.cli import add_json, say, say_json
from backbay.plugin import human_bytes

from ..llm import estimate
from .opening import add_backend, add_model, sizes_of


def add_arguments(parser: ArgumentParser) -> None:
    add_model(parser)
    add_backend(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Exit status 1 if the model does not fit."""
    name = backbay.choose(args.backend).name
    memory = estimate(args.model, name, **sizes_of(args, name))
    with backbay.open(None, name) as backend:
        devices = backend.devices()
    short = shortfalls(memory, devices)
    if args.json:
        say_json({"backend": name, "fits": not short, "short": short, "memory": memory.as_dict()})
    else:
        say(f"{memory}")
        for device, missing in short.items():
            say(f"does not fit: {device} is short of {human_bytes(missing)}")
        if not short:
            say(f"fits, on {name}")
    return 1 if short else 0


def shortfalls(memory: BackendMemory, devices: list[DeviceInfo]) -> dict[str, int]:
    """Missing bytes by device; devices that do not report free memory are left out."""
    free = {device.id: device.free_memory for device in devices}
    need = {device.id: device.total() for device in memory.devices}
    need[memory.cpu.id] += memory.input_weights.size + memory.host.size
    missing = {id: size - (free.get(id) or size) for id, size in need.items()}
    return {id: size for id, size in missing.items() if size > 0}
