"""Why there is no GPU: no code for one, no driver, another missing library, a hidden device, or a trial that it fails.

As a program, it prints the names of the GPUs that ggml reports.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from backbay.internals import run_helper

from ..library.library import Library, load_library, text
from ..library.location import REBUILD, VARIABLE
from .device import description, gpus, tried_gpus

NOT_GPUS = ("CPU", "RPC", "BLAS")  # kinds of devices that are no GPUs
OPTIONS = {"CUDA": "-DGGML_CUDA=ON", "Vulkan": "-DGGML_VULKAN=ON", "HIP": "-DGGML_HIP=ON"}
DRIVERS = {"CUDA": "libcuda.so.1", "Vulkan": "libvulkan.so.1", "HIP": "libamdhip64.so"}
"""What a driver installs on Linux, by kind; Vulkan's drivers come with its loader."""
HIDING = {
    "CUDA": ("CUDA_VISIBLE_DEVICES",),
    "Vulkan": ("GGML_VK_VISIBLE_DEVICES", "VK_LOADER_DRIVERS_DISABLE"),
    "HIP": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}
"""Environment variables that hide devices, by kind."""
NAMED = "GGML_VK_VISIBLE_DEVICES"  # also takes devices that ggml passes over, as they are CPUs
TIMEOUT = 60.0  # seconds


def why_no_gpu(library: Library) -> str:
    """The reason for each kind of GPU that the library has code for, with the remedy."""
    refused = [
        f"{id} fails its trial: {verdict.why_not}" for id, _, verdict in tried_gpus(library) if verdict
    ]
    if refused:
        return "; ".join(refused)
    kinds = _kinds(library)
    reasons = [_why_none(library, kind, path) for kind, path in kinds.items()]
    if reasons:
        return "; ".join(reasons)
    options = ", ".join(f"{option} for {kind}" for kind, option in OPTIONS.items())
    return f"none: the library has no code for GPUs; rebuild it: {REBUILD} with one of {options}"


def _kinds(library: Library) -> dict[str, Path | None]:
    """The kinds of GPUs that the library has code for, with the files of those that are files of their own."""
    lib = library.lib
    registered = (
        text(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(n)))
        for n in range(lib.ggml_backend_reg_count())
    )
    found: dict[str, Path | None] = {kind: None for kind in registered if kind not in NOT_GPUS}
    for kind in OPTIONS:
        for path in library.path.parent.glob(f"*ggml-{kind.lower()}.*"):
            found[kind] = path
    return found


def _why_none(library: Library, kind: str, path: Path | None) -> str:
    driver = DRIVERS.get(kind) if sys.platform == "linux" else None
    if driver and (error := _not_loaded(driver)):
        return f"{kind}: its driver is not installed: {error}"
    if path and (error := _not_loaded(str(path))):
        return (
            f"{kind}: the code for it cannot be loaded: {error}; if that is a library of {kind}, install it, "
            "or name its folder in LD_LIBRARY_PATH"
        )
    hidden = {name: os.environ[name] for name in HIDING.get(kind, ()) if name in os.environ}
    if hidden and (found := _reported(library, without=hidden)):
        settings = ", ".join(f"{name}={value}" for name, value in hidden.items())
        return f"{kind}: {found} is hidden by {settings}"
    if kind == "Vulkan" and not hidden and (found := _reported(library, {NAMED: "0"})):
        return f"{kind}: ggml passes over {found}, a CPU; {NAMED}=0 takes it"
    return f"{kind}: no driver reports a device; install the GPU's driver, or a newer one, and check that it sees the GPU"


def _not_loaded(path: str) -> str:
    """Why a library cannot be loaded, or nothing."""
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return ""


def _reported(library: Library, added: Mapping[str, str] = {}, without: Mapping[str, str] = {}) -> str:
    """The GPUs that ggml reports in a process with another environment."""
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {VARIABLE: str(library.path), **added}
    command = [sys.executable, "-m", "backbay_ggml.devices.missing_gpus"]
    try:
        return run_helper(command, env=environment, timeout=TIMEOUT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def main() -> int:
    library = load_library()
    sys.stdout.write(", ".join(description(library, handle) for handle in gpus(library)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
