"""libggml, opened once per process, and checked to be one that this plugin knows."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from typing import Any, final

from backbay import BackendUnavailableError, DType

from . import logs
from .abi import DTYPES, NULL, Ptr, dtype_of, ffi
from .location import VARIABLE, locate

OLDEST, NEWEST = (0, 15, 3), (0, 25, 3)
"""The ggml versions that the tests run on; patch levels above the newest are let in."""
SPINS = "10000"  # half a millisecond or so
CPU_DEVICE = 0  # of enum ggml_backend_dev_type, which only grows at its end

_lock = threading.Lock()
_loaded: Library | None = None


@final
class Library:
    """The functions of libggml, as `lib`, and what was found out about it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _refuse_second(path)
        # Without this, a failed check in ggml starts a debugger before it ends the process.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        _give_way_soon()
        try:
            self.lib: Any = ffi.dlopen(str(path))
        except OSError as error:
            raise BackendUnavailableError(f"{path} cannot be loaded: {error}") from error
        self.version = _check_version(self.lib, path)
        self.number = _numbers(self.version)
        _check_layout(self.lib, self)
        logs.attach(self.lib)
        self.cpu = self._find_cpu()
        self.view_ops, self.none_op = _op_numbers(self.lib)
        self.sums_in_half = _sums_in_half(self.lib)

    def has(self, name: str) -> bool:
        """Whether this version has a function."""
        try:
            return getattr(self.lib, name) is not None
        except AttributeError:
            return False

    def devices(self) -> list[Ptr]:
        """Every device that ggml reports, the CPU first."""
        count = self.lib.ggml_backend_dev_count()
        found = [self.lib.ggml_backend_dev_get(i) for i in range(count)]
        return sorted(found, key=lambda device: self.lib.ggml_backend_dev_type(device) != CPU_DEVICE)

    def features(self) -> dict[str, str]:
        """What the CPU code was built with, by ggml's names."""
        registry = self.lib.ggml_backend_dev_backend_reg(self.cpu)
        address = self.lib.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_get_features")
        if address == NULL:
            return {}
        listed = ffi.cast("ggml_backend_feature *(*)(ggml_backend_reg_t)", address)(registry)
        found: dict[str, str] = {}
        index = 0
        while listed[index].name != NULL:
            found[text(listed[index].name)] = text(listed[index].value)
            index += 1
        return found

    def was_told(self, flag: str) -> bool:
        """Whether the compiler of the CPU's code was given a flag, as far as the code tells."""
        return any(flag.encode() in path.read_bytes() for path in self.path.parent.glob("libggml-cpu*"))

    def cpu_procedure(self, name: str, signature: str) -> Any:
        """A function of the CPU's code that has no name of its own in the library."""
        registry = self.lib.ggml_backend_dev_backend_reg(self.cpu)
        return ffi.cast(signature, self.lib.ggml_backend_reg_get_proc_address(registry, name.encode()))

    def can_dequantize(self, dtype: DType) -> bool:
        """Whether blocks of a type can be read as floats."""
        return dtype.is_quantized and bool(self.lib.ggml_get_type_traits(int(dtype)).to_float != NULL)

    def can_quantize(self, dtype: DType) -> bool:
        """Whether the CPU can make blocks of a type."""
        return dtype.is_quantized and bool(self.lib.ggml_get_type_traits_cpu(int(dtype)).from_float != NULL)

    def can_multiply(self, dtype: DType) -> bool:
        """Whether the CPU multiplies weights of a type."""
        return bool(self.lib.ggml_get_type_traits_cpu(int(dtype)).vec_dot != NULL)

    def activation(self, weight: DType) -> DType:
        """What activations are rounded to before they meet weights of a type."""
        return DTYPES[self.lib.ggml_get_type_traits_cpu(int(weight)).vec_dot_type]

    def describe(self, tensor: Ptr) -> str:
        """An op and its operands, for people."""
        operands = [f"{dtype_of(t)}{list(t.ne)}" for t in tensor.src if t != NULL]
        return f"{text(self.lib.ggml_op_name(tensor.op)).lower()}({', '.join(operands)})"

    def knows(self, dtype: DType) -> bool:
        """Whether this version has a type, with the block that GGUF gives it."""
        traits = self.lib.ggml_get_type_traits(int(dtype))
        return bool(traits.type_size == dtype.type_size and traits.blck_size == dtype.block_size)

    def _find_cpu(self) -> Ptr:
        devices = self.devices()
        if not devices or self.lib.ggml_backend_dev_type(devices[0]) != CPU_DEVICE:
            self.lib.ggml_backend_load_all_from_path(str(self.path.parent).encode())
            devices = self.devices()
        if not devices or self.lib.ggml_backend_dev_type(devices[0]) != CPU_DEVICE:
            raise BackendUnavailableError(f"{self.path}: this libggml has no CPU device")
        return devices[0]


def load_library() -> Library:
    """The library of this process; found and checked the first time."""
    global _loaded  # noqa: PLW0603 - ggml's own state is one per process
    with _lock:
        if _loaded is None:
            _loaded = Library(locate())
        return _loaded


def text(pointer: Ptr) -> str:
    """A C string; empty for NULL."""
    return "" if pointer == NULL else ffi.string(pointer).decode(errors="replace")


def _refuse_second(path: Path) -> None:
    """A second libggml would bind to the first one's base and CPU code, and mix versions silently."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    for line in maps.read_text().splitlines():
        name = line.partition("/")[2]
        if re.search(r"/libggml(-base|-cpu)?\.so[.\d]*$", "/" + name):
            folder = Path("/" + name).parent
            if folder.resolve() != path.parent.resolve():
                raise BackendUnavailableError(
                    f"{path} cannot be loaded beside {folder}, which this process loaded before: use one of them, "
                    f"by {VARIABLE}, or in a process of its own"
                )


def _give_way_soon() -> None:
    """Threads of libgomp that wait for each other spin for many milliseconds, on cores that busy neighbours want too.

    Hardly ever does one wait for half a millisecond where there are none. It is said before libgomp is loaded, which
    reads it once; whoever started the process has the last word.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _check_version(lib: Any, path: Path) -> str:
    supported = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"
    try:
        version = text(lib.ggml_version())
    except AttributeError:
        raise BackendUnavailableError(
            f"{path} is no ggml from {supported}: it cannot tell its version"
        ) from None
    number = _numbers(version)
    if not (number >= OLDEST and number[:2] <= NEWEST[:2]):
        raise BackendUnavailableError(f"{path} is ggml {version}; supported are {supported}")
    return version


def _check_layout(lib: Any, library: Library) -> None:
    """Build a few tensors, and read back what our declarations say is there."""
    known = ffi.sizeof("ggml_tensor") + 32  # and the header of an object in ggml's pool
    overhead = lib.ggml_tensor_overhead()
    wrong = [f"ggml_tensor_overhead is {overhead}, not {known}"] if overhead != known else _probe(lib)
    wrong += [
        f"type {dtype} differs"
        for dtype in (DType.F32, DType.F16, DType.Q4_0, DType.Q6_K)
        if not library.knows(dtype)
    ]
    if wrong:
        raise BackendUnavailableError(f"{library.path} has a layout that is not ours: {'; '.join(wrong)}")


def _probe(lib: Any) -> list[str]:
    ctx = _scratch(lib)
    try:
        a = lib.ggml_new_tensor_4d(ctx, int(DType.F32), 8, 3, 1, 1)
        b = lib.ggml_new_tensor_4d(ctx, int(DType.F32), 8, 5, 1, 1)
        lib.ggml_set_name(a, b"probe")
        product, scaled, view = (
            lib.ggml_mul_mat(ctx, a, b),
            lib.ggml_scale(ctx, a, 2.5),
            lib.ggml_view_1d(ctx, a, 4, 32),
        )
        read = {
            "ne": list(product.ne) == [3, 5, 1, 1],
            "nb": list(a.nb) == [4, 32, 96, 96],
            "src": product.src[0] == a and product.src[1] == b,
            "op": lib.ggml_op_name(product.op) != NULL and text(lib.ggml_op_name(product.op)) == "MUL_MAT",
            "op_params": ffi.cast("float *", scaled.op_params)[0] == 2.5,
            "view": view.view_src == a and view.view_offs == 32,
            "name": text(a.name) == "probe",
        }
    finally:
        lib.ggml_free(ctx)
    return [f"{field} is not where it should be" for field, right in read.items() if not right]


def _op_numbers(lib: Any) -> tuple[frozenset[int], int]:
    """Of ops that compute nothing: those that look at another tensor's data, and of a tensor that is no op's."""
    ctx = _scratch(lib)
    try:
        a = lib.ggml_new_tensor_4d(ctx, int(DType.F32), 8, 1, 1, 1)
        views = (
            lib.ggml_view_1d(ctx, a, 4, 0),
            lib.ggml_reshape_4d(ctx, a, 4, 2, 1, 1),
            lib.ggml_permute(ctx, a, 1, 0, 2, 3),
        )
        return frozenset(view.op for view in views), a.op
    finally:
        lib.ggml_free(ctx)


def _sums_in_half(lib: Any) -> bool:
    """Whether products of f16 are summed in f16, as builds for AVX512-FP16 do: a sum that f32 holds overflows."""
    lib.ggml_backend_dev_count()  # it fills the tables that conversions use
    count, result = 1024, ffi.new("float *")
    numbers = ffi.new("uint16_t[]", [0x5800] * count)  # 128, whose squares make 2^24
    lib.ggml_get_type_traits_cpu(int(DType.F16)).vec_dot(count, result, 0, numbers, 0, numbers, 0, 1)
    return bool(result[0] != 2.0**24)


def _scratch(lib: Any) -> Ptr:
    return lib.ggml_init(ffi.new("ggml_init_params *", (16 * lib.ggml_tensor_overhead(), NULL, True))[0])
