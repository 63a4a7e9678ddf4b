"""What `backbay doctor` says of this machine's ggml."""

from __future__ import annotations

from pathlib import Path

from backbay.plugin import human_bytes

from .devices.device import Device, find_devices
from .library.abi import NULL
from .library.compiler_flags import COMMAND, READS_AHEAD
from .library.library import NEWEST, OLDEST, Library, load_library, text
from .weights import arrangements as extra

NO_GPUS = ("CPU", "RPC", "BLAS")  # kinds of devices that a library has without one
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def diagnose() -> dict[str, str]:
    """Line by line: the library, its version, its devices, and what slows it down or is not used."""
    library = load_library()
    devices = find_devices(library, ())
    supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    return {
        "library": str(library.path),
        "ggml": f"{library.version} (supported: {supported})",
        "devices": ", ".join(_described(device) for device in devices),
        "gpus": _gpus(library, devices),
        "cpu features": ", ".join(name for name, value in library.features().items() if value != "0")
        or "none told",
        "llamafile kernels": _llamafile(library),
        "reads ahead": _reads_ahead(library),
        "sums of f16": _sums(library),
        "repacked weights": _arrangement(library, extra.REPACK),
        "amx": _arrangement(library, extra.AMX),
        "rpc": "yes" if library.lib.ggml_backend_reg_by_name(b"RPC") != NULL else "not in this library",
        "huge pages": _huge_pages(),
    }


def _described(device: Device) -> str:
    info = device.info()
    return f"{info.id} {info.name} ({human_bytes(info.total_memory or 0)})"


def _gpus(library: Library, devices: list[Device]) -> str:
    """Those that are used, or why there are none: no code for any, or no device that the code finds."""
    found = [device.id for device in devices if not device.is_cpu]
    if found:
        return ", ".join(found)
    lib = library.lib
    kinds = [
        text(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(n)))
        for n in range(lib.ggml_backend_reg_count())
    ]
    able = [kind for kind in kinds if kind not in NO_GPUS]
    if able:
        return f"none found, though the library has code for {', '.join(able)}: is the driver there, and the device visible?"
    return (
        f"none: the library is built for {', '.join(kinds)} alone; rebuild it for others, for NVIDIA's with "
        f"{COMMAND} -DGGML_CUDA=ON"
    )


def _llamafile(library: Library) -> str:
    if "LLAMAFILE" in library.features():
        return "yes"
    return f"no: prompts run at half the speed; {COMMAND}"


def _reads_ahead(library: Library) -> str:
    if library.was_told(READS_AHEAD):
        return "yes"
    return f"not that the library knew: a step may take 1.6 times as long as it could; {COMMAND}, with GCC"


def _sums(library: Library) -> str:
    if library.sums_in_half:
        return f"in f16: attention to long texts is several times slower, and less exact; {COMMAND}"
    return "in f32"


def _arrangement(library: Library, name: str) -> str:
    if name not in extra.buffer_types(library):
        return "not in this library"
    known = extra.verdict(library, name)
    if known.why_not:
        remedy = f"; where GCC 12 built code that crashes: {COMMAND}" if name == extra.AMX else ""
        return f"not used: {known.why_not}{remedy}"
    return f"used for {', '.join(known.types)}" if known.types else "not used: no faster here"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "unknown to this system"
    if "[never]" in HUGE_PAGES.read_text():
        return f"off in {HUGE_PAGES}; copied weights may be read faster with madvise there"
    return "used for copied weights"
