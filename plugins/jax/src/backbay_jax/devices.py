"""The devices of a platform of JAX, by name or by the library of its PJRT plugin: their ids and their memory."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jax
from jax._src import xla_bridge  # `register_plugin`, which JAX's guide names, has no public form

from backbay import BackendUnavailableError, OptionError
from backbay.plugin import CPU, DeviceInfo, host_memory

Device = Any  # a jax.Device


@cache
def platform_name(option: str) -> str:
    """JAX's name of a platform; the library of a PJRT plugin is registered by the name of its file."""
    named = library_of(option) or (option if "/" in option or option.endswith(".so") else "")
    if not named:
        return option
    path = Path(named).resolve()
    if not path.is_file():
        raise OptionError(f"option platform: there is no file {option}")
    if xla_bridge.backends_are_initialized():
        reason = f"{option} comes too late: JAX is in use in this process, and takes no more plugins"
        raise OptionError(
            f"option platform: {reason}; remedy: open this backend first, or in its own process"
        )
    name = path.stem.removeprefix("lib")
    try:
        xla_bridge.register_plugin(name, library_path=str(path), priority=-1)  # other code's default stays
    except RuntimeError as error:
        raise BackendUnavailableError(f"{option} is no PJRT plugin that JAX can load: {error}") from error
    return name


def library_of(package: str) -> str:
    """The path of the PJRT plugin that an installed package has; empty if it has none, or is none."""
    try:
        files = distribution(package).files or []
    except (PackageNotFoundError, ValueError):
        return ""
    return next((str(file.locate()) for file in files if re.search(r"pjrt.*\.so$", file.name)), "")


def jax_devices(option: str) -> dict[str, Device]:
    """The devices by our ids, the CPU first; without a platform those of JAX's choice."""
    name = platform_name(option)
    devices = _devices_of(name)
    kind = (name or devices[0].platform).upper()
    others = {} if kind == "CPU" else {f"{kind}:{n}": device for n, device in enumerate(devices)}
    return {CPU: _devices_of("cpu")[0], **others}


def _devices_of(platform: str) -> list[Device]:
    try:
        return list(jax.local_devices(backend=platform or None))
    except RuntimeError as error:
        reason = f"JAX has no platform {platform!r}: {error}"
        if allowed := jax.config.values.get("jax_platforms"):
            reason += f", and JAX_PLATFORMS={allowed}"
        remedy = "install its plugin, such as jax[cuda13], or name a PJRT plugin's library, /path/plugin.so"
        raise BackendUnavailableError(f"{reason}; remedy: {remedy}") from error


def device_info(id: str, device: Device) -> DeviceInfo:
    """A device with its memory, as far as its platform tells."""
    if id == CPU:
        total, free = host_memory()
        return DeviceInfo(id, "XLA CPU", total_memory=total, free_memory=free)
    stats = device.memory_stats() or {}
    total, used = stats.get("bytes_limit"), stats.get("bytes_in_use", 0)
    free = None if total is None else max(total - used, 0)
    return DeviceInfo(id, device.device_kind, is_gpu=True, total_memory=total, free_memory=free)
