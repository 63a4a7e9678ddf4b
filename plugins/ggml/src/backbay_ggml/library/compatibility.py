"""Whether a libggml is one that the plugin knows: its version, its functions, the layout of its tensors."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from backbay import BackendUnavailableError, DType

from .abi import TENSOR_HEADER, c_string, ffi, has_type, temporary_pool
from .location import VARIABLE

OLDEST, NEWEST = (0, 15, 3), (0, 25, 3)
"""The range of ggml versions that the tests run on; later patch levels of the newest are accepted."""
SUPPORTED = f"{'.'.join(map(str, OLDEST))} to {'.'.join(map(str, NEWEST))}"

logger = logging.getLogger("backbay.ggml")


def check_functions(missing: set[str], path: Path) -> None:
    if missing:
        few = ", ".join(sorted(missing)[:3]) + (", ..." if len(missing) > 3 else "")
        raise BackendUnavailableError(
            f"{path} lacks {len(missing)} of ggml's functions ({few}); supported are ggml {SUPPORTED}"
        )


def check_version(lib: Any, path: Path, *, any_version: bool = False) -> tuple[str, tuple[int, ...]]:
    """The version, and its numbers; BackendUnavailableError if it is not supported, or a warning if any is taken."""
    version = c_string(lib.ggml_version())
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not is_tested(number):
        told = f"{path} is ggml {version}"
        if not any_version:
            raise BackendUnavailableError(f"{told}; supported are {SUPPORTED}; {VARIABLE} takes any")
        logger.warning("%s, outside of what is tested: %s", told, SUPPORTED)
    return version, number


def is_tested(number: tuple[int, ...]) -> bool:
    return number >= OLDEST and number[:2] <= NEWEST[:2]


def refuse_second(path: Path) -> None:
    """Refuse a libggml beside another one: it would use the first one's base and CPU code, and mix versions."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    for line in maps.read_text().splitlines():
        name = line.partition("/")[2]
        if re.search(r"/libggml[^/]*\.so[.\d]*$", "/" + name):
            folder = Path("/" + name).parent
            if folder.resolve() != path.parent.resolve():
                raise second_library(path, folder)


def second_library(path: Path, loaded: Path) -> BackendUnavailableError:
    return BackendUnavailableError(
        f"{path} cannot be loaded beside {loaded}, which this process has loaded already: "
        f"use one of the two (set {VARIABLE}), or a process of its own"
    )


def check_layout(lib: Any, path: Path) -> None:
    """Build a few tensors and read them back; BackendUnavailableError if a field lies elsewhere."""
    expected, overhead = ffi.sizeof("ggml_tensor") + TENSOR_HEADER, lib.ggml_tensor_overhead()
    if overhead != expected:
        wrong = [f"ggml_tensor_overhead is {overhead}, not {expected}"]
    else:
        types = (DType.F32, DType.F16, DType.Q4_0, DType.Q6_K)
        wrong = [f"type {dtype} has another block" for dtype in types if not has_type(lib, dtype)]
        wrong += _misplaced_fields(lib)
    if wrong:
        raise BackendUnavailableError(f"{path} has an unknown memory layout: {'; '.join(wrong)}")


def _misplaced_fields(lib: Any) -> list[str]:
    with temporary_pool(lib) as pool:
        a = lib.ggml_new_tensor_4d(pool, int(DType.F32), 8, 3, 1, 1)
        b = lib.ggml_new_tensor_4d(pool, int(DType.F32), 8, 5, 1, 1)
        lib.ggml_set_name(a, b"probe")
        product, scaled = lib.ggml_mul_mat(pool, a, b), lib.ggml_scale(pool, a, 2.5)
        view = lib.ggml_view_1d(pool, a, 4, 32)
        right = {
            "ne": list(product.ne) == [3, 5, 1, 1],
            "nb": list(a.nb) == [4, 32, 96, 96],
            "src": product.src[0] == a and product.src[1] == b,
            "op": ffi.string(lib.ggml_op_name(product.op)) == b"MUL_MAT",
            "op_params": ffi.cast("float *", scaled.op_params)[0] == 2.5,
            "view": view.view_src == a and view.view_offs == 32,
            "name": ffi.string(a.name) == b"probe",
        }
    return [f"the field {field} lies elsewhere" for field, found in right.items() if not found]
