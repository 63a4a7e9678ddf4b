"""Faults that a command or a process of its own meets, while models answer elsewhere: small disks, little memory, bad plugins.

Each function returns what went wrong, or nothing; a machine that lacks the means (root, control groups) raises Skipped.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HOSTILE = [
    "import os; os.kill(os.getpid(), 11)",
    "raise ImportError('\\x1b[2J no')",
    "import time; time.sleep(3600)",
    'import os\nfor fd in range(3, 40):\n    try: os.write(fd, b\'{"stage": "hal\')\n    except OSError: pass\nos._exit(3)',
    "import threading, time; threading.Thread(target=time.sleep, args=(3600,)).start()",
]
PROGRAM = """
import sys
import backbay
from backbay_engine import load

name, path = sys.argv[1:]
try:
    with load(path, name, context=96, num_threads=1) as llm:
        print(llm.generate("sum 417 268 =", temperature=0).text.strip())
except (backbay.NoMemoryError, backbay.BackendUnavailableError) as error:
    print(type(error).__name__)
"""


class Skipped(Exception):
    """This machine lacks the means for a fault."""


def run(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,  # type: ignore[call-overload]
    )


@contextmanager
def small_disk() -> Iterator[Path]:
    """A disk of 1 MiB."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
        )
        if mounted.returncode:
            raise Skipped("no disk can be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def full_disk(model: Path, backend: str) -> str:
    """An export onto a disk that is too small leaves nothing, and says which file and why."""
    with small_disk() as disk:
        target = disk / "out"
        done = run(
            "-m", "backbay", "export", str(model), "--backend", "onnx", "-o", str(target), "--context", "32"
        )
        left = [str(path) for path in target.rglob("*") if path.is_file()] if target.exists() else []
        told = done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr
        return "" if told and not left else f"exit {done.returncode}, {left} left, {done.stderr[-300:]}"


def full_disk_for_a_report(model: Path, backend: str) -> str:
    """A report onto a full disk is an error, and the older report stays."""
    with small_disk() as disk:
        report = disk / "report.json"
        report.write_text("old")
        (disk / "filler").write_bytes(bytes((1 << 20) - 4096))
        conform = ["-m", "backbay", "conform", backend, "--ops", "neg", "--size", "smoke", "--jobs", "1"]
        done = run(*conform, "--report", str(report))
        kept = report.read_text()
        whole = kept == "old" or json.loads(kept)
        return "" if whole and "Traceback" not in done.stderr else f"{kept[:80]!r}: {done.stderr[-300:]}"


def little_memory(model: Path, backend: str) -> str:
    """In a control group with little memory, a load works or is a NoMemoryError."""
    own = next((row for row in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in row), "")
    group = Path("/sys/fs/cgroup/memory") / own.rpartition(":")[2].lstrip("/") / f"chaos-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Skipped(f"no control group can be made here: {error}") from None
    try:
        (group / "memory.limit_in_bytes").write_text(str(120 << 20))
        enter = f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        done = run("-W", "ignore", "-c", enter + PROGRAM, backend, str(model))
    finally:
        group.rmdir()
    return (
        ""
        if done.stdout.split() in (["685"], ["NoMemoryError"])
        else f"{done.returncode} {done.stderr[-300:]}"
    )


def few_files(model: Path, backend: str) -> str:
    """With hardly any file descriptors, a load works or is one of our errors."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (10, 10))

    done = run("-W", "ignore", "-c", PROGRAM, backend, str(model), preexec_fn=limit)
    good = (["685"], ["NoMemoryError"], ["BackendUnavailableError"])
    return "" if done.stdout.split() in good else f"{done.returncode} {done.stderr[-300:]}"


def hostile_plugin(source: str) -> Callable[[Path, str], str]:
    def hostile_plugin(model: Path, backend: str) -> str:
        """A bad plugin is installed: the other backends are listed, and the one that is named answers."""
        with tempfile.TemporaryDirectory() as folder:
            site = Path(folder)
            (site / "hostile_plugin.py").write_text(source)
            info = site / "backbay_hostile-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: backbay-hostile\nVersion: 1.0\n")
            (info / "entry_points.txt").write_text("[backbay.backends]\nhostile = hostile_plugin\n")
            variables = {**os.environ, "PYTHONPATH": folder, "BACKBAY_CACHE_DIR": folder}
            listed = run("-m", "backbay", "list", "--json", "--timeout", "30", env=variables)
            names = {row["name"]: row["works"] for row in json.loads(listed.stdout)}
            if not names.get(backend) or names.get("hostile"):
                return f"list: {names}"
            prompt = ["-p", "sum 417 268 =", "--temperature", "0", "--context", "96"]
            ran = run("-m", "backbay", "run", str(model), "--backend", backend, *prompt, env=variables)
            return "" if "685" in ran.stdout else f"run: {ran.stdout[-100:]} {ran.stderr[-300:]}"

    return hostile_plugin


BYSTANDERS = [full_disk, full_disk_for_a_report, little_memory, few_files, *map(hostile_plugin, HOSTILE)]
