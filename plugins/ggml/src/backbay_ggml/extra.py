"""The buffer types in which ggml's CPU code rearranges weights, and whether they work on this machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from backbay import DType

from .abi import NULL, Ptr, ffi
from .library import Library, text

REPACK = "CPU_REPACK"
TYPES = (DType.Q4_0, DType.Q4_K, DType.Q6_K, DType.Q5_K, DType.Q2_K, DType.Q8_0, DType.IQ4_NL, DType.MXFP4)
"""What some CPU has an arrangement for."""
TIMEOUT = 60.0
NOT_ASKED = "not tried yet"

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


def working(library: Library, name: str) -> bool:
    """Whether a buffer type exists and has been seen to compute rightly here: tried once, in a child process."""
    return name in buffer_types(library) and verdict(library, name) == ""


def verdict(library: Library, name: str, *, ask: bool = True) -> str:
    """Why a buffer type cannot be used, nothing if it can; remembered for this library on this machine."""
    path = _cache_file(library, name)
    known = _remembered(path)
    if known is None and ask:
        known = _try(library, name)
        _remember(path, known)
    return NOT_ASKED if known is None else known


def _try(library: Library, name: str) -> str:
    """Multiply in a child: code for instructions that the machine promises, and does not have, costs only that."""
    command = [sys.executable, "-m", "backbay_ggml.probe_child", name]
    environment = {**os.environ, "BACKBAY_GGML_LIB": str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the trial did not end: {error}"
    if done.returncode == 0:
        return ""
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return f"signal {-done.returncode}" if done.returncode < 0 else f"{last[0]} (exit {done.returncode})"


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


def _remembered(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text())["why_not"])
    except (OSError, ValueError, KeyError):
        return None


def _remember(path: Path, why_not: str) -> None:
    """Where nothing can be written, the trial is made again the next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"why_not": why_not}))
        partial.replace(path)
    except OSError as error:
        logger.debug("the verdict on a buffer type is not kept: %s", error)
