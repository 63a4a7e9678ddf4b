"""What `backbay doctor` says of this machine's ggml."""

from __future__ import annotations

from pathlib import Path

from backbay.memory import human_bytes

from . import extra
from .abi import NULL
from .devices import find_devices
from .library import NEWEST, OLDEST, Library, load_library

HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def diagnose() -> dict[str, str]:
    """Line by line: the library, its version, its devices, and what slows it down or is not used."""
    library = load_library()
    supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    return {
        "library": str(library.path),
        "ggml": f"{library.version} (supported: {supported})",
        "devices": _devices(library),
        "cpu features": ", ".join(name for name, value in library.features().items() if value != "0")
        or "none told",
        "llamafile kernels": _llamafile(library),
        "repacked weights": _arrangement(library, extra.REPACK),
        "amx": _arrangement(library, extra.AMX),
        "rpc": "yes" if library.lib.ggml_backend_reg_by_name(b"RPC") != NULL else "not in this library",
        "huge pages": _huge_pages(),
    }


def _devices(library: Library) -> str:
    """Every device that the library reports."""
    devices = [device.info() for device in find_devices(library, ())]
    return ", ".join(
        f"{device.id} {device.name} ({human_bytes(device.total_memory or 0)})" for device in devices
    )


def _llamafile(library: Library) -> str:
    if "LLAMAFILE" in library.features():
        return "yes"
    return (
        "no: prompts run at half the speed; rebuild with "
        'CMAKE_ARGS="-DGGML_LLAMAFILE=ON -DGGML_RPC=ON" pip install --no-cache-dir --force-reinstall ggml-python'
    )


def _arrangement(library: Library, name: str) -> str:
    if name not in extra.buffer_types(library):
        return "not in this library"
    known = extra.verdict(library, name)
    if known.why_not:
        remedy = (
            "; GCC 12 builds AMX so that it crashes, clang 16 builds it right" if name == extra.AMX else ""
        )
        return f"not used: {known.why_not}{remedy}"
    return f"used for {', '.join(known.types)}" if known.types else "not used: no faster here"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "unknown to this system"
    return HUGE_PAGES.read_text().strip()
