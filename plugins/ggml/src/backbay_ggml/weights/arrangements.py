"""Arrangements of CPU weights: buffer types in which ggml rearranges weights for faster products.

A trial in a child process tells whether one works on this machine, and for which dtypes it, or a form of products, pays.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, final

from backbay import DType
from backbay.internals import ended_from_outside, exit_name, processor, run_helper
from backbay.plugin import CachedValue

from ..library.abi import NULL, Ptr, c_string, ffi, leaf_tensor, temporary_pool
from ..library.library import Library
from ..library.location import VARIABLE, library_stamp

REPACK, AMX = "CPU_REPACK", "AMX"
TYPES = (
    DType.Q4_0, DType.Q4_K, DType.Q6_K, DType.Q5_K, DType.Q2_K, DType.Q8_0, DType.IQ4_NL, DType.MXFP4, DType.Q4_1,
    DType.IQ4_XS,
)  # fmt: skip
"""The dtypes that some CPU has an arrangement for."""
EXTRA_ROWS = 32  # of weights, for longer products: the fewest that AMX takes
SAMPLE_BYTES = 4096
ONE_COLUMN = "ONE_COLUMN"  # the trial of another form of products of one column; see `ops.matrix`
WRONG = "wrong results"  # the begin of what the trial prints if the arrangement computes wrongly
TIMEOUT = 120.0  # seconds


def buffer_types(library: Library) -> dict[str, Ptr]:
    """The CPU's extra buffer types, by name."""
    address = library.registry_procedure("ggml_backend_dev_get_extra_bufts")
    if address == NULL:
        return {}
    listed = ffi.cast("ggml_backend_buffer_type_t *(*)(ggml_backend_dev_t)", address)(library.cpu)
    found: dict[str, Ptr] = {}
    while listed != NULL and listed[len(found)] != NULL:
        kind = listed[len(found)]
        found[c_string(library.lib.ggml_backend_buft_name(kind))] = kind
    return found


@dataclass(frozen=True)
class ArrangementVerdict:
    """Why an arrangement cannot be used (empty if it can), and the dtypes of `WeightArrangement`.

    A result that `lasts` tells of this machine, not of a trial that was killed or got no memory.
    """

    why_not: str = ""
    types: tuple[str, ...] = ()
    spaced: tuple[str, ...] = ()
    native: tuple[str, ...] = ()
    lasts: bool = field(default=True, compare=False)

    def dtypes(self) -> tuple[tuple[DType, ...], ...]:
        named = (self.types, self.spaced, self.native)
        return tuple(tuple(dtype for dtype in TYPES if str(dtype) in names) for names in named)


@final
class WeightArrangement:
    """A buffer type, for weights of some dtypes.

    Products with `spaced` dtypes are slow if all their columns begin at the same offset of a page; more rows help.
    Native code of ours multiplies `native` dtypes in this arrangement.
    """

    def __init__(self, library: Library, name: str, result: ArrangementVerdict | None = None) -> None:
        self._library, self._lib, self.name = library, library.lib, name
        self._types, self.spaced, self.native = (TYPES, (), ()) if result is None else result.dtypes()
        self.buffer_type = buffer_types(library)[name]
        self._sample: Ptr = self._lib.ggml_backend_buft_alloc_buffer(self.buffer_type, SAMPLE_BYTES)

    def takes(self, dtype: DType) -> bool:
        return dtype in self._types

    def tensor(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor in this arrangement, without data; None if products with it do not exist."""
        if not self.takes(dtype) or len(shape) != 2 or 0 in shape:
            return None
        made = leaf_tensor(dtype, shape)
        made.buffer = self._sample
        self._lib.ggml_backend_buffer_init_tensor(self._sample, made)
        return made if made.extra != NULL and self._multiplies(made) else None

    def stand_in(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor that graphs take for one in this arrangement, for dry runs."""
        made = self.tensor(dtype, shape)
        if made is not None:
            made.buffer, made.data = self._sample, self._lib.ggml_backend_buffer_get_base(self._sample)
        return made

    def size(self, tensor: Ptr) -> int:
        return int(self._lib.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor))

    def extra_size(self, tensor: Ptr) -> int:
        """The bytes that must follow a tensor, so that products may read EXTRA_ROWS more."""
        return self.size(tensor) * EXTRA_ROWS // int(tensor.ne[1])

    def place(self, memory: Ptr, tensor: Ptr, address: Ptr) -> None:
        tensor.buffer = tensor.extra = NULL
        self._lib.ggml_backend_tensor_alloc(memory, tensor, address)

    def close(self) -> None:
        self._lib.ggml_backend_buffer_free(self._sample)

    def _multiplies(self, w: Ptr) -> bool:
        with temporary_pool(self._lib) as pool:
            x = self._lib.ggml_new_tensor_4d(pool, int(DType.F32), w.ne[0], 2, 1, 1)
            product = self._lib.ggml_mul_mat(pool, w, x)
            return bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, product))


def usable_arrangements(library: Library) -> list[WeightArrangement]:
    """The arrangements that work here, for the dtypes for which they pay, the best first; all, if nothing is avoided."""
    if not library.avoidances:
        return [WeightArrangement(library, name) for name in buffer_types(library)]
    found = []
    for name in (AMX, REPACK):
        if name not in buffer_types(library):
            continue
        result = trial_result(library, name)
        if not result.why_not and result.types:
            found.append(WeightArrangement(library, name, result))
    return found


@cache
def faster_in_llamafile(library: Library) -> frozenset[DType]:
    """The dtypes whose products of one column are faster in another form, with the kernels of llamafile for AVX2."""
    features = library.features() if library.avoidances else {}
    if "LLAMAFILE" not in features or "AVX2" not in features:
        return frozenset()
    types = trial_result(library, ONE_COLUMN).types
    return frozenset(dtype for dtype in DType if str(dtype) in types)


def trial_result(library: Library, name: str) -> ArrangementVerdict:
    """The result of a trial, remembered for this library on this machine."""
    kept = _kept(library, name)
    known = _recalled(kept)
    if known is not None:
        return known
    with kept.found_once():  # two trials at once would measure each other
        known = _recalled(kept)
        if known is not None:
            return known
        result = run_trial(library, name)
        if result.lasts:
            kept.keep(asdict(result))
        return result


def known_faults(library: Library) -> dict[str, str]:
    """Why arrangements are not used, by name, as far as they were tried."""
    results = ((name, _recalled(_kept(library, name))) for name in buffer_types(library))
    return {name: result.why_not for name, result in results if result is not None and result.why_not}


def _recalled(kept: CachedValue) -> ArrangementVerdict | None:
    try:
        return _parsed(kept.recall())
    except (KeyError, TypeError):  # nothing was kept, or nonsense
        return None


def run_trial(library: Library, name: str) -> ArrangementVerdict:
    """Run a trial in a child process: if the CPU lacks a promised instruction, only the child dies."""
    command = [sys.executable, "-m", "backbay_ggml.weights.arrangement_trial_child", name]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = run_helper(command, env=environment, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return ArrangementVerdict(f"it was tried for {TIMEOUT:g} s without a result", lasts=False)
    except OSError as error:
        return ArrangementVerdict(f"it could not be tried: {error}", lasts=False)
    if done.returncode == 0:
        try:
            return _parsed({"why_not": "", **json.loads(done.stdout)})
        except (ValueError, KeyError, TypeError):
            return ArrangementVerdict(f"the trial's output cannot be read: {done.stdout!r}", lasts=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    if done.returncode < 0:
        lasts = not ended_from_outside(done.returncode, done.stderr)
        return ArrangementVerdict(
            f"it ended with {exit_name(done.returncode)} when it was tried", lasts=lasts
        )
    return ArrangementVerdict(
        f"{last[0]} ({exit_name(done.returncode)})", lasts=done.stdout.startswith(WRONG)
    )


def _kept(library: Library, name: str) -> CachedValue:
    """The place of a result, which depends on the trial, the library and the CPU."""
    facts: list[Any] = [library.version, str(library.path), platform.machine(), processor()]
    native = [] if library.native.path is None else [library.native.path]
    facts += library_stamp(library.path, library.cpu_code, *native)
    return CachedValue("trials", f"ggml-{name.lower()}", facts)


def _parsed(fields: Any) -> ArrangementVerdict:
    types, spaced, native = (tuple(map(str, fields[key])) for key in ("types", "spaced", "native"))
    return ArrangementVerdict(str(fields["why_not"]), types, spaced, native)
