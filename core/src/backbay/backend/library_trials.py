"""Trials of native libraries: a child process tries one, once on each machine, some with the cases below."""

from __future__ import annotations

import json
import platform
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..data.encoding import Array, Bytes
from ..data.files import CachedValue
from ..types.cpu import forced_cpu
from ..types.spec import DType
from .helper_processes import run_helper

OF_THE_CODE = {getattr(signal, name, None) for name in ("SIGILL", "SIGSEGV", "SIGFPE", "SIGABRT", "SIGTRAP")}
"""Signals that code brings upon itself, and will again, as where the CPU lacks an instruction.

SIGTRAP is one of them: what a compiler puts where code must not come raises it on some CPUs, SIGILL on others. SIGBUS is
none: it comes from a mapped file that is cut or cannot be read, from a full /dev/shm, and from memory that fails. Few
CPUs raise it for code alone, and another trial costs less than a wrong verdict that stays. Any other comes from outside:
SIGKILL where the system has no memory left, SIGTERM, SIGINT and SIGHUP from users.
"""
NO_MEMORY = ("bad_alloc", "MemoryError", "OutOfDeviceMemory", "OutOfHostMemory", "out of memory")
"""Parts of what a child says that gets no memory, such as before C++ aborts."""
NATIVE, RETRY = "the faster native code", "the next process tries it again"


def ended_from_outside(status: int, said: str) -> bool:
    """Whether a child ended for no fault of the code that it tried; then it may not end so again.

    `status` is its exit status, negative for a signal; `said` is what it said at its end.
    """
    return any(text in said for text in NO_MEMORY) or (status < 0 and -status not in OF_THE_CODE)


def exit_name(status: int) -> str:
    """The name of an exit status: the signal that ended the process, such as `SIGILL`, else `exit status 1`."""
    try:
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"
    except ValueError:
        return f"signal {-status}"


def processor() -> str:
    """The model and flags of this machine's CPU, where the system tells them, and the kind that code is limited to."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor() + forced_cpu()
    lines = info.read_text().splitlines()
    told = [line for line in lines[:40] if line.startswith(("model name", "flags", "microcode", "Features"))]
    return "\n".join(told) + forced_cpu()


def try_library(
    label: str, library: Path, command: Sequence[str], *, timeout: float, facts: Iterable[object] = ()
) -> str:
    """What a command finds wrong with a library of native code; it prints nothing if that is nothing.

    The answer is remembered for this file, this machine, and other `facts` that it depends on. If the CPU lacks an
    instruction that the library takes for granted, only the command's process dies.
    """
    import subprocess

    status = library.stat()
    file = str(library), status.st_size, status.st_mtime_ns
    answer = CachedValue("trials", label, [*file, platform.machine(), processor(), *facts])
    if isinstance(known := answer.recall(), str):
        return known
    try:
        done = run_helper(command, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"{NATIVE} was tried for {timeout:g} s without a result; {RETRY}"
    except OSError as error:
        return f"{NATIVE} could not be tried: {error}; {RETRY}"
    found, lasts = done.stdout.strip(), True
    if done.returncode != 0:
        lasts = done.returncode < 0 and not ended_from_outside(done.returncode, done.stderr)
        last = "".join(f" ({line})" for line in (done.stdout + done.stderr).strip().splitlines()[-1:])
        remedy = "`backbay cache clear trials` lets it be tried again" if lasts else RETRY
        found = f"{NATIVE} ended with {exit_name(done.returncode)} when it was tried{last}; {remedy}"
    if lasts:
        answer.keep(found)
    return found


_apart: set[tuple[str, str, int]] = set()
"""Labels and files of trials in which one process gave no answer for all purposes."""


def try_purpose(
    label: str,
    library: Path,
    command: Sequence[str],
    purpose: str,
    *,
    timeout: float,
    facts: Iterable[object] = (),
) -> str:
    """What is wrong with a library for one of its purposes; empty if nothing is.

    The command prints JSON, with what is wrong with each purpose. If it dies of one, each purpose has a process of its
    own: the command gets the purpose as its last word, and prints of it alone.
    """
    facts, together = list(facts), (label, str(library), library.stat().st_mtime_ns)
    if together not in _apart:
        found = try_library(label, library, command, timeout=timeout, facts=facts)
        if found.startswith("{"):
            return str(json.loads(found)[purpose])
        _apart.add(together)
    return try_library(f"{label}-{purpose}", library, [*command, purpose], timeout=timeout, facts=facts)


SCALES = {DType.Q4_0: (0,), DType.Q8_0: (0,), DType.Q4_K: (0, 2), DType.Q6_K: (208,)}
"""The places of scales in blocks."""
TOKENS, HEADS, VALUES, KEYS = 9, 3, 18, 64


@dataclass(frozen=True)
class TrialCase:
    """A call of an op: its name, its operands in the op's order (arrays of the reversed shape), and the result."""

    op: str
    operands: tuple[Array, ...]
    expected: Array


def recurrence_cases() -> list[TrialCase]:
    """Both delta rules and the selective scan, of some tokens in two sequences, with decays of both widths."""
    rng = np.random.default_rng(4)
    each = 2, TOKENS, HEADS
    s, a = rng.standard_normal((2, HEADS, VALUES, KEYS)), rng.uniform(-1, 0, (HEADS, 1))
    q, k, share, dt = (rng.uniform(-0.1, 0.1, (*each, n)) for n in (KEYS, KEYS, 1, 1))
    v, decay = rng.standard_normal((*each, VALUES)), rng.uniform(-1, 0, (*each, KEYS))
    gated, removing = (s, q, k, v, decay, share), (s, q, k, v, decay, share, q)
    scan, ids = (s[::-1], v, dt[..., 0], a, k, q), np.array([1, 0], np.int32)
    return [
        TrialCase("delta_rule", _single(gated), _delta_rule(*gated)),
        TrialCase("delta_rule", _single(removing), _delta_rule(*removing)),
        TrialCase("ssm_scan", (*_single(scan), ids), _selective_scan(scan[0][ids], *scan[1:])),
    ]


def random_blocks(dtype: DType, count: int, rng: np.random.Generator) -> Bytes:
    """The blocks of `count` numbers, with any codes, and with scales near 1."""
    blocks = rng.integers(0, 256, (count // dtype.block_size, dtype.type_size), np.uint8)
    for place in SCALES[dtype]:
        scale = rng.uniform(0.5, 1.5, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scale.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def _single(operands: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(np.ascontiguousarray(x, np.float32) for x in operands)


def _delta_rule(
    s: Array, q: Array, k: Array, v: Array, decay: Array, share: Array, removed: Array | None = None
) -> Array:
    y = np.empty_like(v)
    for t in range(v.shape[1]):
        query, key, kept, part = (x[:, t, :, None] for x in (q, k, np.exp(decay), share))
        read = key * kept if removed is None else removed[:, t, :, None]
        known = (s * read).sum(-1, keepdims=True)
        value = v[:, t, ..., None]
        if removed is None:
            s = s * kept + key * part * (value - known)
        else:
            s = s * kept + key * value - part * read * known
        y[:, t] = (s * query).sum(-1)
    return np.concatenate([y.ravel(), s.ravel()])


def _selective_scan(s: Array, x: Array, dt: Array, a: Array, b: Array, c: Array) -> Array:
    y, step = np.empty_like(x), np.log1p(np.exp(dt))
    for t in range(x.shape[1]):
        wide = step[:, t, :, None, None]
        s = s * np.exp(wide * a[:, None]) + b[:, t, :, None] * x[:, t, ..., None] * wide
        y[:, t] = (s * c[:, t, :, None]).sum(-1)
    return np.concatenate([y.ravel(), s.ravel()])
