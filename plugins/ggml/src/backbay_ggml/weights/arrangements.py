"""The buffer types in which ggml's CPU code rearranges weights, and whether they work on this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from backbay import DType, Spec

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library, text
from ..ops.builder import four, leaf_tensor

REPACK, AMX = "CPU_REPACK", "AMX"
TYPES = (
    DType.Q4_0, DType.Q4_K, DType.Q6_K, DType.Q5_K, DType.Q2_K, DType.Q8_0, DType.IQ4_NL, DType.MXFP4, DType.Q4_1,
    DType.IQ4_XS,
)  # fmt: skip
"""What some CPU has an arrangement for."""
TIMEOUT = 120.0  # seconds
SPACE = 32  # rows of weights, the fewest that AMX takes

logger = logging.getLogger("backbay.ggml")


def buffer_types(library: Library) -> dict[str, Ptr]:
    """The extra buffer types of the CPU, by name."""
    registry = library.lib.ggml_backend_dev_backend_reg(library.cpu)
    name = b"ggml_backend_dev_get_extra_bufts"
    address = library.lib.ggml_backend_reg_get_proc_address(registry, name)
    if address == NULL:
        return {}
    listed = ffi.cast("ggml_backend_buffer_type_t *(*)(ggml_backend_dev_t)", address)(library.cpu)
    found: dict[str, Ptr] = {}
    while listed != NULL and listed[len(found)] != NULL:
        kind = listed[len(found)]
        found[text(library.lib.ggml_backend_buft_name(kind))] = kind
    return found


@dataclass(frozen=True)
class Verdict:
    """What a trial has shown: why a buffer type cannot be used, nothing if it can, and for which dtypes it is worth it.

    Of these, `spaced` are those whose products are slow where all columns begin at the same place of a page.
    """

    why_not: str = ""
    types: tuple[str, ...] = ()
    spaced: tuple[str, ...] = ()


@final
class Arrangement:
    """A buffer type, and which weights it takes."""

    def __init__(
        self,
        library: Library,
        name: str,
        types: Collection[DType] = TYPES,
        spaced: Collection[DType] = (),
    ) -> None:
        self._library, self._lib, self.name, self._types = library, library.lib, name, types
        self.spaced = spaced  # dtypes whose products are to have more rows
        self.kind = buffer_types(library)[name]
        self._trial: Ptr = self._lib.ggml_backend_buft_alloc_buffer(self.kind, 4096)

    def tensor(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor in this arrangement, with no data yet, if products with it exist."""
        if dtype not in self._types or len(shape) != 2 or 0 in shape:
            return None
        made = leaf_tensor(dtype, four(Spec(dtype, shape)))
        made.buffer = self._trial
        self._lib.ggml_backend_buffer_init_tensor(self._trial, made)
        return made if made.extra != NULL and self._multiplies(made) else None

    def measured(self, dtype: DType, shape: tuple[int, ...]) -> Ptr | None:
        """A tensor that graphs treat as one in this arrangement, for dry runs; it is of no use to compute with."""
        made = self.tensor(dtype, shape)
        if made is not None:
            made.buffer, made.data = self._trial, self._lib.ggml_backend_buffer_get_base(self._trial)
        return made

    def size(self, tensor: Ptr) -> int:
        """The bytes that a tensor takes."""
        return int(self._lib.ggml_backend_buft_get_alloc_size(self.kind, tensor))

    def space(self, tensor: Ptr) -> int:
        """The bytes that must follow a tensor so that products may read more rows than it has."""
        return self.size(tensor) * SPACE // int(tensor.ne[1])

    def settle(self, memory: Ptr, tensor: Ptr, place: Ptr) -> None:
        """Give a tensor its place in a buffer of this kind."""
        tensor.buffer = tensor.extra = NULL
        self._lib.ggml_backend_tensor_alloc(memory, tensor, place)

    def close(self) -> None:
        self._lib.ggml_backend_buffer_free(self._trial)

    def _multiplies(self, w: Ptr) -> bool:
        room = ffi.new("ggml_init_params *", (4 * self._lib.ggml_tensor_overhead(), NULL, True))
        pool = self._lib.ggml_init(room[0])
        try:
            x = self._lib.ggml_new_tensor_4d(pool, int(DType.F32), w.ne[0], 2, 1, 1)
            product = self._lib.ggml_mul_mat(pool, w, x)
            return bool(self._lib.ggml_backend_dev_supports_op(self._library.cpu, product))
        finally:
            self._lib.ggml_free(pool)


def useful(library: Library) -> list[Arrangement]:
    """The arrangements that have been seen to work here, for the weights that are faster in them, the best first."""
    found = []
    for name in (AMX, REPACK):
        known = verdict(library, name) if name in buffer_types(library) else Verdict("not in this library")
        types, spaced = (
            [dtype for dtype in TYPES if str(dtype) in names] for names in (known.types, known.spaced)
        )
        if not known.why_not and types:
            found.append(Arrangement(library, name, types, spaced))
    return found


def verdict(library: Library, name: str) -> Verdict:
    """What a trial of a buffer type has shown; remembered for this library on this machine."""
    path = _cache_file(library, name)
    known = _remembered(path)
    if known is None:
        known = _try(library, name)
        _remember(path, known)
    return known


def _try(library: Library, name: str) -> Verdict:
    """Multiply in a child: code for instructions that the machine promises, and does not have, costs only that."""
    command = [sys.executable, "-m", "backbay_ggml.weights.arrangement_trial", name]
    environment = {**os.environ, "BACKBAY_GGML_LIB": str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Verdict(f"the trial did not end: {error}")
    if done.returncode == 0:
        try:
            return _told({"why_not": "", **json.loads(done.stdout)})
        except (ValueError, KeyError, TypeError):
            return Verdict(f"the trial told nothing that can be read: {done.stdout!r}")
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return Verdict(
        f"signal {-done.returncode}" if done.returncode < 0 else f"{last[0]} (exit {done.returncode})"
    )


def _cache_file(library: Library, name: str) -> Path:
    """Named after everything that a verdict depends on."""
    files = sorted(library.path.parent.glob("libggml*"))
    facts: list[Any] = [name, library.version, str(library.path), platform.machine(), _processor()]
    facts += [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=12).hexdigest()
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "backbay" / f"ggml-{name.lower()}-{digest}.json"


def _processor() -> str:
    """The model and flags of the CPU, as far as the system tells."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    return "\n".join(
        line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))
    )


def _remembered(path: Path) -> Verdict | None:
    try:
        return _told(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _told(verdict: dict[str, Any]) -> Verdict:
    types, spaced = (tuple(map(str, verdict[key])) for key in ("types", "spaced"))
    return Verdict(str(verdict["why_not"]), types, spaced)


def _remember(path: Path, known: Verdict) -> None:
    """Where nothing can be written, the trial is made again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(asdict(known)))
        partial.replace(path)
    except OSError as error:
        logger.debug("the verdict on a buffer type is not kept: %s", error)
