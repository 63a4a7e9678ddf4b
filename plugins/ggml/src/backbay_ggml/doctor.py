"""What `backbay doctor` says of this machine's ggml."""

from __future__ import annotations

from pathlib import Path

from . import extra
from .library import NEWEST, OLDEST, Library, load_library, text

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
        "repacked weights": _repack(library),
        "amx": _amx(library),
        "huge pages": _huge_pages(),
    }


def _devices(library: Library) -> str:
    """Every device that the library reports; computed on is the CPU."""
    cpu, *others = [text(library.lib.ggml_backend_dev_name(device)) for device in library.devices()]
    unused = f"; not used yet: {', '.join(others)}" if others else ""
    return f"{cpu}{unused}"


def _llamafile(library: Library) -> str:
    if "LLAMAFILE" in library.features():
        return "yes"
    return (
        "no: prompts run at half the speed; rebuild with "
        'CMAKE_ARGS="-DGGML_LLAMAFILE=ON -DGGML_RPC=ON" pip install --no-cache-dir --force-reinstall ggml-python'
    )


def _repack(library: Library) -> str:
    if extra.REPACK not in extra.buffer_types(library):
        return "not in this library"
    why_not = extra.verdict(library, extra.REPACK)
    return f"not used: {why_not}" if why_not else "used"


def _amx(library: Library) -> str:
    """Weights stay in plain buffers, which never reach AMX code."""
    if "AMX_INT8" not in library.features():
        return "not in this library"
    return "in this library, not used: GCC 12 builds it so that it crashes; clang 16 builds it right"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "unknown to this system"
    return HUGE_PAGES.read_text().strip()
