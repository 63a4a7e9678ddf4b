"""The lines of `backbay doctor` about this machine's ggml.

As a program, it prints the names of the GPUs that ggml reports.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from backbay.internals import forced_cpu, human_bytes, run_helper
from backbay_native import ATTENTION, CONVOLUTION, EXPERTS, PRODUCTS, RECURRENCE, ROWS

from .devices.device import Device, device_description, find_devices, reported_gpus, tried_gpus
from .library.abi import NULL, c_string
from .library.compatibility import SUPPORTED
from .library.library import CODE, Library, load_library
from .library.location import REBUILD, VARIABLE
from .weights.arrangements import AMX, REPACK, buffer_types, faster_in_llamafile, trial_result

PREFETCH = "-fprefetch-loop-arrays"
NO_LLAMAFILE = f"no: prompts run at half the speed; rebuild the library: {REBUILD}"
SUMS_IN_HALF = (
    f"in f16: attention is less exact, and several times slower on long texts; rebuild the library: {REBUILD}"
)
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
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def diagnose() -> dict[str, str]:
    """The library, its version and devices, and what makes it slow or is not used, with the remedy."""
    library = load_library()
    native = library.native
    devices = find_devices(library, ())
    features = [name for name, value in library.features().items() if value != "0"]
    return {
        "library": str(library.path),
        "ggml": f"{library.version} ({'supported' if library.is_tested else 'outside of what is tested'}: {SUPPORTED})",
        "devices": ", ".join(_described(device) for device in devices),
        "gpus": _gpus(library, devices),
        "cpu code": _cpu_code(library),
        "cpu features": ", ".join(features) or "unknown",
        "compiler": _compiler(library),
        "llamafile kernels": "yes" if "LLAMAFILE" in library.features() else NO_LLAMAFILE,
        "prefetch": _prefetch(library),
        "sums of f16": SUMS_IN_HALF if library.sums_in_half else "in f32",
        "attention": native.describe(ATTENTION, "ggml"),
        "short convolutions": native.describe(CONVOLUTION, "ggml"),
        "recurrences": native.describe(RECURRENCE, "ggml"),
        "copies of rows": native.describe(ROWS, "ggml"),
        "products of quantized weights": native.describe(PRODUCTS, "ggml"),
        "products of experts": native.describe(EXPERTS, "ggml"),
        "repacked weights": _arrangement(library, REPACK),
        "amx": _arrangement(library, AMX),
        "products of one column": _one_column(library),
        "rpc": "yes" if library.lib.ggml_backend_reg_by_name(b"RPC") != NULL else "not in this library",
        "huge pages": _huge_pages(),
    }


def _described(device: Device) -> str:
    info = device.info()
    return f"{info.id} {info.name} ({human_bytes(info.total_memory or 0)})"


def _gpus(library: Library, devices: list[Device]) -> str:
    """The GPUs, with what their trials found, or why there are none."""
    found = [_tried(device) for device in devices if not device.is_cpu]
    return "; ".join(found) or why_no_gpu(library)


def _tried(device: Device) -> str:
    verdict = device.verdict
    if verdict is None or not verdict.wrong:
        return device.id
    return (
        f"{device.id}, where these are copied first, or left to the CPU: {', '.join(sorted(verdict.wrong))}"
    )


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
        c_string(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(n)))
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
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return ""


def _reported(library: Library, added: Mapping[str, str] = {}, without: Mapping[str, str] = {}) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in without}
    environment |= {VARIABLE: str(library.path), **added}
    command = [sys.executable, "-m", "backbay_ggml.doctor"]
    try:
        return run_helper(command, env=environment, timeout=TIMEOUT).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _cpu_code(library: Library) -> str:
    """The kind of CPU that the code was built for, and which others the library serves."""
    others = sorted(path.name for path in library.cpu_code.parent.glob(f"{CODE}*"))
    if library.cpu_code.name not in others:
        return f"{library.cpu_code.name}, for one kind of CPU"
    mine, *rest = (name.removeprefix(CODE).partition(".so")[0] for name in (library.cpu_code.name, *others))
    kind = forced_cpu()
    return f"{mine}, of {', '.join(rest)}" + (f", as BACKBAY_CPU={kind} asks" if kind else "")


def _compiler(library: Library) -> str:
    """The compiler and its flags, less those for single instruction sets, which the features tell."""
    words = library.compiler_flags().split()
    shown = [word for word in words if not word.startswith("-m") or "=" in word]
    return " ".join(shown) or "unknown: the library does not record it"


def _prefetch(library: Library) -> str:
    if PREFETCH in library.compiler_flags():
        return "yes"
    return f"not recorded by this library: steps may take 1.6 times as long; rebuild it with GCC: {REBUILD}"


def _arrangement(library: Library, name: str) -> str:
    if name not in buffer_types(library):
        return "not in the code for this CPU"
    result = trial_result(library, name)
    if result.why_not:
        remedy = f"; if GCC 12 built its code, rebuild the library: {REBUILD}" if name == AMX else ""
        return f"not used: {result.why_not}{remedy}"
    return f"used for {', '.join(result.types)}" if result.types else "not used: not faster here"


def _one_column(library: Library) -> str:
    types = sorted(map(str, faster_in_llamafile(library)))
    return f"in another form than ggml's for {', '.join(types)}" if types else "as ggml computes them"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "unknown to this system"
    if "[never]" in HUGE_PAGES.read_text():
        return f"off in {HUGE_PAGES}; with madvise there, copied weights may be read faster"
    return "used for copied weights"


if __name__ == "__main__":
    _library = load_library()
    sys.stdout.write(", ".join(device_description(_library, handle) for handle in reported_gpus(_library)))
