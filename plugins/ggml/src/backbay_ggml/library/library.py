"""libggml: opened once per process, and refused if its layout is unknown, or its version and nobody named the file."""

from __future__ import annotations

import _thread
import atexit
import copy
import ctypes
import logging
import os
import re
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, final

from backbay import BackendUnavailableError, DType
from backbay.internals import cached_property, forced_cpu, raise_if_starved, without_forks
from backbay_native import NativeCode, find_native

from .abi import DTYPES, NULL, Ptr, c_string, dtype_of, ffi, op_numbers
from .avoidance import AVOIDANCES, LibraryFault
from .compatibility import (
    check_functions,
    check_layout,
    check_version,
    is_tested,
    refuse_second,
    second_library,
)
from .library_trial import try_library
from .location import locate_library, name_of_library

SPINS = "10000"  # about half a millisecond
OF_THE_CPU = {"ggml_get_type_traits_cpu", "ggml_graph_compute", "ggml_graph_plan"}
"""Functions that may lie in a file of their own, with the code for this machine's CPU."""
# ggml's information level (2) is as detailed as Python's debug.
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
CONTINUED = 5
AGAIN = 0.05  # seconds until a Ctrl-C comes again
CPU_DEVICE = 0  # of enum ggml_backend_dev_type, which only grows at its end
NATIVE = "BACKBAY_GGML_NATIVE"  # names the file of native code, or turns it off
ENDING = ".dylib" if sys.platform == "darwin" else ".so"
CODE = "libggml-cpu-"  # begins the file with code for one of several kinds of CPUs
NAMES = {
    "x86-64": ("x64",),
    "avx2": ("haswell",),
    "avx2-vnni": ("alderlake", "haswell"),
    "avx512": ("skylakex",),
    "avx512-vnni": ("zen4", "cascadelake"),
    "amx": ("sapphirerapids", "zen4", "cascadelake"),  # without AMX, it is emulated in backbay's native code
}
"""ggml's names for code that a kind of CPU runs, the best first."""

logger = logging.getLogger("backbay.ggml")
_lock = threading.Lock()
_loaded: Library | None = None
_pending: list[tuple[int, str]] = []  # the begin of a line that ggml prints in pieces
_kept: list[Any] = []  # callbacks that C holds pointers to


@final
class LibraryFunctions:
    """ggml's functions by their names, as attributes, of the first file that has them."""

    def __init__(self, path: Path) -> None:
        self._opened: list[Any] = []
        self.take_from(path)

    def take_from(self, path: Path) -> None:
        """Add the functions of a file; it stays open."""
        try:
            # A module for Node.js lacks functions of Node.js, which ggml does not call.
            opened = ffi.dlopen(str(path), ffi.RTLD_LAZY)
        except OSError as error:
            raise_if_starved(error, f"loading {path}")
            raise BackendUnavailableError(f"{path} cannot be loaded: {error}") from error
        self._opened.append(opened)
        for name in self.missing():
            try:
                setattr(self, name, getattr(opened, name))
            except (AttributeError, ffi.error):
                continue

    def missing(self) -> set[str]:
        """The functions that the plugin calls and no file has."""
        return set(dir(self._opened[0])) - set(vars(self))


def file_of(address: Ptr, lib: Any) -> Path:
    """The loaded file in which code lies."""
    place = ffi.new("code_place *")
    if lib.dladdr(address, place) == 0:
        raise BackendUnavailableError(f"no loaded file holds the address {address}")
    return Path(ffi.string(place.file).decode())


@final
class Library:
    """The functions of libggml, as `lib`, and the facts about this build. Of a library that somebody named, any version
    is taken."""

    avoidances: tuple[LibraryFault, ...] = AVOIDANCES
    """The faults of ggml's code that lowering works around."""

    def __init__(self, path: Path, *, any_version: bool = False) -> None:
        self.path = path
        """The file libggml; `cpu_code` is that with the code for this machine's CPU."""
        refuse_second(path)
        # Without this variable, a failed check in ggml starts a debugger before it ends the process.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        # Vulkan would change the order of ops, and looks past writes into leaves: a read may see what a later op writes.
        os.environ.setdefault("GGML_VK_DISABLE_GRAPH_OPTIMIZE", "1")
        # Waiting threads of libgomp sleep after half a millisecond, not after many, for the sake of busy neighbours. Without
        # them, a thread hardly ever waits that long. libgomp reads the variable once, when it is loaded.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
        functions = LibraryFunctions(path)
        self.lib: Any = functions
        check_functions(functions.missing() - OF_THE_CPU, path)
        self.version, self.number = check_version(self.lib, path, any_version=any_version)
        log_through_python(self.lib)
        self.cpu = self._find_cpu()
        self.cpu_code = file_of(self.registry_procedure("ggml_backend_get_features"), self.lib)
        functions.take_from(self.cpu_code)
        check_functions(functions.missing(), path)
        check_layout(self.lib, path)
        self.view_ops, self.none_op = op_numbers(self.lib)
        self.sums_in_half = _sums_in_half(self.lib)
        self.native = find_native(NATIVE)

    @cached_property
    def as_it_is(self) -> Library:
        """The library without native code, whose faults nothing avoids."""
        made = copy.copy(self)
        made.native, made.avoidances = NativeCode(None, "avoid=nothing"), ()
        return made

    @property
    def is_tested(self) -> bool:
        return is_tested(self.number)

    def devices(self) -> list[Ptr]:
        """Every device that ggml reports, the CPU first."""
        count = self.lib.ggml_backend_dev_count()
        found = [self.lib.ggml_backend_dev_get(i) for i in range(count)]
        return sorted(found, key=lambda device: self.lib.ggml_backend_dev_type(device) != CPU_DEVICE)

    def features(self) -> dict[str, str]:
        """The instruction sets and options that the CPU's code was built with, by ggml's names."""
        address = self.registry_procedure("ggml_backend_get_features")
        registry = self.lib.ggml_backend_dev_backend_reg(self.cpu)
        listed = ffi.cast("ggml_backend_feature *(*)(ggml_backend_reg_t)", address)(registry)
        found: dict[str, str] = {}
        while listed.name != NULL:
            found[c_string(listed.name)] = c_string(listed.value)
            listed += 1
        return found

    def compiler_flags(self) -> str:
        """Compiler and flags of the CPU's code, as GCC records them; empty without -frecord-gcc-switches."""
        recorded = re.search(rb"GNU C\d+ [ -~]+", self.cpu_code.read_bytes())
        return recorded[0].decode() if recorded else ""

    def registry_procedure(self, name: str) -> Ptr:
        """The address of a function that the CPU's code registers by name; NULL if it has none."""
        registry = self.lib.ggml_backend_dev_backend_reg(self.cpu)
        return self.lib.ggml_backend_reg_get_proc_address(registry, name.encode())

    def can_dequantize(self, dtype: DType) -> bool:
        return dtype.is_quantized and bool(self.lib.ggml_get_type_traits(int(dtype)).to_float != NULL)

    def can_quantize(self, dtype: DType) -> bool:
        return dtype.is_quantized and bool(self.lib.ggml_get_type_traits_cpu(int(dtype)).from_float != NULL)

    def can_multiply(self, dtype: DType) -> bool:
        return bool(self.lib.ggml_get_type_traits_cpu(int(dtype)).vec_dot != NULL)

    def activation(self, weight: DType) -> DType:
        """The dtype that activations are rounded to before they meet weights of a dtype."""
        return DTYPES[self.lib.ggml_get_type_traits_cpu(int(weight)).vec_dot_type]

    def custom_op(self, name: str) -> Ptr:
        """A function of native code, for ggml's custom ops."""
        address = ctypes.cast(self.native.function(name), ctypes.c_void_p).value
        return ffi.cast("void (*)(ggml_tensor *, int, int, void *)", address)

    def describe(self, tensor: Ptr) -> str:
        """An op and its operands, for people."""
        operands = [f"{dtype_of(t)}{list(t.ne)}" for t in tensor.src if t != NULL]
        return f"{c_string(self.lib.ggml_op_name(tensor.op)).lower()}({', '.join(operands)})"

    def _find_cpu(self) -> Ptr:
        kind, cpu = forced_cpu(), self._cpu_device()
        if kind and cpu is not None:
            raise BackendUnavailableError(
                f"BACKBAY_CPU={kind} needs a file for each kind of CPU, and {self.path} has the code for one kind built in"
            )
        if cpu is None:
            self.lib.ggml_backend_load_all_from_path(os.fsencode(self.path.parent))
            cpu = self._cpu_device()
        if kind:
            if cpu is not None:
                self.lib.ggml_backend_unload(self.lib.ggml_backend_dev_backend_reg(cpu))
            load_cpu_code(self.lib, self.path.parent, kind)
            cpu = self._cpu_device()
        if cpu is None:
            refuse_starvation(self.path.parent)
            raise BackendUnavailableError(f"{self.path}: this libggml has no CPU device")
        return cpu

    def _cpu_device(self) -> Ptr | None:
        devices = self.devices()
        if devices and self.lib.ggml_backend_dev_type(devices[0]) == CPU_DEVICE:
            return devices[0]
        return None


def load_library(named: str = "") -> Library:
    """The library of this process, located and checked at the first call; a named one is opened by a child process before."""
    global _loaded  # noqa: PLW0603 - ggml's own state is one per process
    with without_forks(), _lock:
        if _loaded is None:
            path, is_named = locate_library(named), bool(name_of_library(named))
            if is_named:
                try_library(path)
            _loaded = Library(path, any_version=is_named)
        elif named and (path := locate_library(named)) != _loaded.path:
            raise second_library(path, _loaded.path)
        return _loaded


def load_cpu_code(lib: Any, folder: Path, kind: str) -> None:
    """Load the best code for a kind of CPU; BackendUnavailableError if the folder lacks it, or this CPU cannot run it."""
    wanted = [f"{CODE}{name}{ENDING}" for name in NAMES[kind]]
    there = [name for name in wanted if (folder / name).is_file()]
    if any(lib.ggml_backend_load(os.fsencode(folder / name)) != NULL for name in there):
        return
    if there:
        refuse_starvation(folder)
        raise BackendUnavailableError(f"BACKBAY_CPU={kind}: this CPU cannot run {', '.join(there)}")
    others = ", ".join(sorted(file.name for file in folder.glob(f"{CODE}*"))) or "no code for kinds of CPUs"
    raise BackendUnavailableError(
        f"BACKBAY_CPU={kind} needs {' or '.join(wanted)}, and {folder} has {others}; "
        "remedy: `make cpus` in a clone builds the code for all kinds"
    )


def refuse_starvation(folder: Path) -> None:
    """BackendUnavailableError if the system refuses the code for CPUs, of which ggml says nothing."""
    try:
        with os.scandir(folder) as files:  # open while they are loaded, as ggml's own list is
            for file in files:
                if file.name.startswith("libggml-cpu"):
                    ctypes.CDLL(file.path)
    except OSError as error:
        raise_if_starved(error, f"loading {folder}")


def log_through_python(lib: Any) -> None:
    """Let ggml log through Python until the interpreter ends."""
    callback = ffi.callback("void(int, const char *, void *)", _receive_log, onerror=_postpone)
    _kept.append(callback)
    lib.ggml_log_set(callback, NULL)
    atexit.register(lib.ggml_log_set, NULL, NULL)


def _postpone(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    """Let Ctrl-C come again when ggml has returned: an error cannot pass through C."""
    if isinstance(error, KeyboardInterrupt):
        timer = threading.Timer(AGAIN, _thread.interrupt_main)
        timer.daemon = True
        timer.start()
    else:
        traceback.print_exception(error)


def _receive_log(level: int, message: Any, _: Any) -> None:
    piece = ffi.string(message).decode(errors="replace")
    if level == CONTINUED and _pending:
        first, begun = _pending.pop()
        level, piece = first, begun + piece
    if piece.endswith("\n"):
        logger.log(LEVELS.get(level, logging.DEBUG), "%s", piece.rstrip())
    else:
        _pending[:] = [(level, piece)]


def _sums_in_half(lib: Any) -> bool:
    """Whether products of f16 are summed in f16, as builds for AVX512-FP16 do: then a sum that fits f32 overflows."""
    lib.ggml_backend_dev_count()  # it fills the tables that conversions use
    count, result = 1024, ffi.new("float *")
    numbers = ffi.new("uint16_t[]", [0x5800] * count)  # 128, whose squares add up to 2^24
    lib.ggml_get_type_traits_cpu(int(DType.F16)).vec_dot(count, result, 0, numbers, 0, numbers, 0, 1)
    return bool(result[0] != 2.0**24)
