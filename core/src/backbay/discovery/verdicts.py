"""Verdicts of probes, kept between processes: a plugin that hangs makes one process wait, not each.

A verdict depends on the plugin's distribution and files, on all other distributions, on this machine since it was
started, and on environment variables that plugins and their libraries read.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..data.files import FOLDER, OFF, CachedValue
from ..types.contract_version import CONTRACT_VERSION
from .installed import BackendEntry

PROBES = "probes"  # their kind in the cache folder
DAY = 86400.0  # seconds; a verdict is kept so long
PREFIXES = (
    "BACKBAY_", "CUDA_", "DYLD_", "GGML_", "GOMP_", "HIP_", "HSA_", "KMP_", "LD_", "MKL_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "ORT_", "PYTHON", "ROCR_", "VK_",
)  # fmt: skip
"""Environment variables that a verdict depends on, and those that begin with the plugin's name."""
IRRELEVANT = (FOLDER, OFF, "BACKBAY_BACKEND", "BACKBAY_TRIAL_SECONDS")
METADATA = (".dist-info", ".egg-info", ".egg-link")
BOOT = Path("/proc/sys/kernel/random/boot_id")
State = tuple[str, int, int]


def kept_verdict(entry: BackendEntry) -> CachedValue | None:
    """The place of a verdict; None for a class that no distribution declares, as nothing tells what it depends on."""
    if not entry.distribution:
        return None
    return CachedValue(PROBES, entry.name, _facts(entry))


def _facts(entry: BackendEntry) -> Iterator[Any]:
    yield entry
    yield str(CONTRACT_VERSION)
    try:  # what tells this machine, since it was started, from others: they may share a home, but not drivers
        boot = BOOT.read_text()
    except OSError:
        boot = ""
    yield sys.version, sys.prefix, platform.machine(), platform.release(), platform.node(), boot
    yield list(_distributions())
    for module in ("backbay", entry.module):
        yield list(_package(module.partition(":")[0].partition(".")[0]))
    yield list(_recorded(entry.distribution))
    yield list(_variables(entry.name))


def _distributions() -> Iterator[State]:
    """The metadata folders of all installed distributions, which an installer replaces."""
    for folder in dict.fromkeys(sys.path):
        try:
            with os.scandir(folder or ".") as found:
                metadata = [Path(each.path) for each in found if each.name.endswith(METADATA)]
            yield from sorted(map(_file, metadata))
        except OSError:  # a folder that does not exist, or an archive
            continue


def _package(name: str) -> Iterator[State]:
    """All files of a package or module, also of one that is installed for editing."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)  # of a name without dots, it imports nothing
    except (ImportError, ValueError, AttributeError):
        return
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        for where, inner, files in os.walk(folder):
            inner[:] = sorted(each for each in inner if each != "__pycache__")
            yield from (_file(Path(where, each)) for each in sorted(files))
    if spec.origin is not None:
        yield _file(Path(spec.origin))


def _recorded(distribution: str) -> Iterator[State]:
    """The files that an installer recorded for a distribution."""
    from importlib.metadata import distribution as installed

    try:
        files = installed(distribution).files or ()
    except Exception:  # noqa: BLE001  its metadata are unreadable
        return
    yield from (_file(Path(str(each.locate()))) for each in files if "__pycache__" not in each.parts)


def _variables(name: str) -> Iterator[tuple[str, str, State | None]]:
    """Variables with their values; of a value that names a file, its state too."""
    prefixes = (*PREFIXES, f"{name.upper().replace('-', '_')}_")
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(prefixes) and variable not in IRRELEVANT:
            yield variable, value, _file(path) if (path := Path(value)).is_absolute() else None


def _file(path: Path) -> State:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return str(path), 0, 0
    return str(path), status.st_size, status.st_mtime_ns
