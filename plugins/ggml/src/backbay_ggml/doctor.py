"""The lines of `backbay doctor` about this machine's ggml."""

from __future__ import annotations

from pathlib import Path

from backbay.internals import forced_cpu, human_bytes

from .devices.device import Device, find_devices
from .devices.missing_gpus import why_no_gpu
from .library.abi import NULL
from .library.library import CODE, SUPPORTED, Library, load_library
from .library.location import REBUILD
from .library.native import ATTENTION, CONVOLUTION, PRODUCTS, RECURRENCE, ROWS, TILES
from .weights.arrangements import AMX, REPACK, buffer_types, other_form_pays, trial_result

PREFETCH = "-fprefetch-loop-arrays"
NO_LLAMAFILE = f"no: prompts run at half the speed; rebuild the library: {REBUILD}"
SUMS_IN_HALF = (
    f"in f16: attention is less exact, and several times slower on long texts; rebuild the library: {REBUILD}"
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def diagnose() -> dict[str, str]:
    """The library, its version and devices, and what makes it slow or is not used, with the remedy."""
    library = load_library()
    devices = find_devices(library, ())
    features = [name for name, value in library.features().items() if value != "0"]
    return {
        "library": str(library.path),
        "ggml": f"{library.version} (supported: {SUPPORTED})",
        "devices": ", ".join(_described(device) for device in devices),
        "gpus": _gpus(library, devices),
        "cpu code": _cpu_code(library),
        "cpu features": ", ".join(features) or "unknown",
        "compiler": _compiler(library),
        "llamafile kernels": "yes" if "LLAMAFILE" in library.features() else NO_LLAMAFILE,
        "prefetch": _prefetch(library),
        "sums of f16": SUMS_IN_HALF if library.sums_in_half else "in f32",
        "attention": _native(library, ATTENTION),
        "short convolutions": _native(library, CONVOLUTION),
        "recurrences": _native(library, RECURRENCE),
        "copies of rows": _native(library, ROWS),
        "products of quantized weights": _products(library),
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


def _products(library: Library) -> str:
    told, native = _native(library, PRODUCTS), library.native
    if not native.has(PRODUCTS) or native.instructions(TILES) is None:
        return told
    why_not = native.why_not(TILES)
    return f"{told}, without AMX: {why_not}" if why_not else f"{told}, and for AMX where columns are many"


def _native(library: Library, purpose: str) -> str:
    """Whether native code of ours serves a purpose, or why not."""
    why_not = library.native.why_not(purpose)
    return f"by ggml: {why_not}" if why_not else f"by native code, for {library.native.instructions(purpose)}"


def _arrangement(library: Library, name: str) -> str:
    if name not in buffer_types(library):
        return "not in the code for this CPU"
    result = trial_result(library, name)
    if result.why_not:
        remedy = f"; if GCC 12 built its code, rebuild the library: {REBUILD}" if name == AMX else ""
        return f"not used: {result.why_not}{remedy}"
    return f"used for {', '.join(result.types)}" if result.types else "not used: not faster here"


def _one_column(library: Library) -> str:
    types = sorted(map(str, other_form_pays(library)))
    return f"in another form than ggml's for {', '.join(types)}" if types else "as ggml computes them"


def _huge_pages() -> str:
    if not HUGE_PAGES.exists():
        return "unknown to this system"
    if "[never]" in HUGE_PAGES.read_text():
        return f"off in {HUGE_PAGES}; with madvise there, copied weights may be read faster"
    return "used for copied weights"
