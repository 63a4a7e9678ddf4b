"""Show the memory that a model would take, by device and layer, and whether it fits; allocates nothing."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from typing import Any

import backbay
from backbay import BackendMemory, DeviceInfo
from backbay.cli import add_json, say, say_json
from backbay.internals import human_bytes

from ..loading import estimate
from ..media.encoder_file import encoder_families
from .model_arguments import (
    add_adapter_arguments,
    add_backend_arguments,
    add_model_arguments,
    add_speculation_arguments,
    chosen_backend,
    load_arguments,
)


def add_arguments(parser: ArgumentParser) -> None:
    add_model_arguments(parser)
    add_backend_arguments(parser)
    add_adapter_arguments(parser)
    add_speculation_arguments(parser)
    add_json(parser)


def run(args: Namespace) -> int:
    """Exit status 1 if the model does not fit."""
    name = chosen_backend(args, measuring=False)
    guesses = {"speculate": args.speculate, "draft": args.draft, "draft_backend": args.draft_backend}
    memory = estimate(args.model, name, **load_arguments(args), **guesses)
    with backbay.open(None, name) as backend:
        devices = backend.devices()
    short, seen = shortfalls(memory, devices), encoder_support(args)
    if args.json:
        fits = {"backend": name, "fits": not short, "short": short}
        say_json(
            {**fits, "memory": memory.as_dict(), "pictures": seen.get("image"), "sound": seen.get("audio")}
        )
    else:
        say(f"{memory}")
        for modality, support in seen.items():
            say(TAKEN[modality].format(**support))
        for device, missing in short.items():
            say(f"does not fit: {device} is short of {human_bytes(missing)}")
        if not short:
            say(f"fits, on {name}")
    return 1 if short else 0


TAKEN = {
    "image": "sees pictures: {family}, {rows} rows of {width} for a picture at most",
    "audio": "hears sound: {family}, {rows} rows of {width} for a piece of 30 seconds",
}


def shortfalls(memory: BackendMemory, devices: list[DeviceInfo]) -> dict[str, int]:
    """Missing bytes by device; devices that do not report free memory are left out."""
    free = {device.id: device.free_memory for device in devices}
    need: Counter[str] = Counter()
    for each in (memory, *memory.companions.values()):
        need.update({device.id: device.total() for device in each.devices})
        need[each.cpu.id] += each.input_weights.size + each.host.size
    known = {id: size for id, size in free.items() if size is not None}
    return {id: size - known[id] for id, size in need.items() if id in known and size > known[id]}


def encoder_support(args: Namespace) -> dict[str, dict[str, Any]]:
    """The pictures or the sound that a model takes, by modality."""
    found = dict[str, dict[str, Any]]()
    for family in encoder_families(args.model, args.projector, args.image_tokens):
        with family.file:
            most = family.largest().tokens
            found[family.modality] = {"family": family.name, "rows": most, "width": family.width}
    return found
