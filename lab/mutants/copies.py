"""Copies of the workspace in which tests run: the sources themselves never hold a mutant.

A copy has an environment of its own, whose first packages are those of the copy. So child processes meet the mutants too,
however they are started: by sys.executable, by a console script, or with -I and -S.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from mutant import Mutant
from planting import plant

HERE = Path(__file__).parent
LEFT_OUT = {".venv", "__pycache__", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
KEPT = {".venv", "__pycache__"}  # in a copy
PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "mutants_plugin",
    "-p",
    "no:cacheprovider",
    "--hypothesis-seed=0",
)
PACKAGES = ".venv/lib/python*/site-packages"
SLOTS = 64  # of the table of hits: those of probe.py
PATIENCE = 3600  # seconds for a test without a mutant
stopped = Event()


class Stopped(Exception):
    """The user has pressed Ctrl-C."""


def mirror(source: Path, target: Path) -> None:
    """Make a folder equal to another; caches of bytecode stay."""
    target.mkdir(parents=True, exist_ok=True)
    entries = {entry.name: entry for entry in os.scandir(source) if entry.name not in LEFT_OUT}
    for entry in os.scandir(target):
        if entry.name not in entries and entry.name not in KEPT:
            shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else Path(entry).unlink()
    for name, entry in entries.items():
        if entry.is_dir(follow_symlinks=False):
            mirror(source / name, target / name)
        elif not _same(entry, target / name):
            (target / name).unlink(missing_ok=True)
            shutil.copy2(entry, target / name, follow_symlinks=False)


def _same(entry: os.DirEntry[str], copy: Path) -> bool:
    try:
        there, here = copy.lstat(), entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (here.st_size, here.st_mtime_ns, here.st_mode) == (there.st_size, there.st_mtime_ns, there.st_mode)


@dataclass
class Run:
    """What came of a run of tests."""

    outcomes: dict[str, str] = field(default_factory=dict)  # passed, failed, skipped, or crashed
    seconds: dict[str, float] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)  # files that could not be collected
    status: int | None = None  # None: it was ended, as it took too long
    hits: bytes = b""

    def outcome(self, test: str) -> str | None:
        """None if the test did not run."""
        nothing_ran = not self.outcomes and self.status not in {0, 5}  # 5: no test was left
        broken = test.partition("::")[0] in self.broken if self.broken else nothing_ran
        return self.outcomes.get(test, "not collected" if broken else None)

    def failed(self, test: str) -> bool:
        return self.outcome(test) in {"failed", "crashed", "not collected"}


class Copy:
    """One copy, in which one run happens at a time."""

    def __init__(self, original: Path, work: Path, name: str, mutants: Mapping[int, Mutant]) -> None:
        self.base, self.folder, self.mutants = work / "base", work / name, mutants
        self.root, self.settings = self.folder / "workspace", self.folder / "settings.json"
        mirror(self.base, self.root)
        self.python = self.root / ".venv" / "bin" / "python"
        if not any(self.root.glob(PACKAGES + "/copy.pth")):
            _make_environment(original, self.root)

    def run(
        self,
        tests: Sequence[str] | None,
        planted: Collection[int] = (),
        *,
        options: Sequence[str] = (),
        rows: Sequence[str] | None = None,
        bound: float | None = None,
        patience: float = PATIENCE,
    ) -> Run:
        """Run tests with mutants; with rows, places note the tests that run them.

        The bound is in seconds, as is the patience with one test.
        """
        mirror(self.base, self.root)
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        files = {name: str(self.folder / name) for name in ("hits", "report", "rows", "collected")}
        Path(files["report"]).write_text("")
        Path(files["rows"]).write_text(json.dumps(rows))
        if rows is not None:
            self._write_probe(Path(files["hits"]), len(rows))
        self.settings.write_text(json.dumps({**files, "tests": tests}))
        plant(self.root, self.mutants, planted, self.folder / "probe.py" if rows is not None else None)
        chosen = [] if tests is None else list(dict.fromkeys(test.partition("::")[0] for test in tests))
        hang = ("-o", f"faulthandler_timeout={patience:.0f}")
        run = Run(status=self._start([*PYTEST, *hang, *options, *chosen], bound))
        _read(run, Path(files["report"]))
        run.hits = Path(files["hits"]).read_bytes()[4 * SLOTS :] if rows is not None else b""
        return run

    def _write_probe(self, hits: Path, tests: int) -> None:
        """The probe's code with its constants, and an empty table: a row for no test, and one for each test."""
        table = bytes(4) + b"\xff" * 4 * (SLOTS - 1)  # no test runs, and of the workers none: -1
        hits.write_bytes(table + bytes((1 + tests) * len(self.mutants)))
        constants = f"HITS, PLACES = {str(hits)!r}, {len(self.mutants)}\n"
        (self.folder / "probe.py").write_text(constants + (HERE / "probe.py").read_text())

    def _start(self, words: Sequence[str], bound: float | None) -> int | None:
        temporary = tempfile.mkdtemp(prefix="pf-")
        variables = {"MUTANTS": str(self.settings), "TMPDIR": temporary}
        variables["XDG_CACHE_HOME"] = str(self.folder / "cache")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHON"))}
        with (self.folder / "output").open("w") as output:
            process = subprocess.Popen(
                [self.python, *words],
                cwd=self.root,
                env=inherited | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            try:
                return _wait(process, bound)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                _end_children(f"TMPDIR={temporary}".encode())
                shutil.rmtree(temporary, ignore_errors=True)


def _wait(process: subprocess.Popen[bytes], bound: float | None) -> int | None:
    passed = 0.0
    while bound is None or passed < bound:
        try:
            return process.wait(0.5)
        except subprocess.TimeoutExpired:
            passed += 0.5
        if stopped.is_set():
            raise Stopped
    return None


def _end_children(mark: bytes) -> None:
    """End the processes of a run that outlived it; its own temporary folder in the environment marks them."""
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in file.read_bytes().split(b"\0"):
                os.kill(int(file.parent.name), signal.SIGKILL)
        except OSError:  # ended meanwhile, or another user's
            continue


def _read(run: Run, report: Path) -> None:
    for line in report.read_text().splitlines():
        what, test, *rest = json.loads(line)
        if what == "broken":
            run.broken.append(test)
        elif what == "start":
            run.outcomes[test] = "crashed"  # until it ends
        else:
            when, outcome, seconds = rest
            before = run.outcomes.get(test, "crashed")
            run.seconds[test] = run.seconds.get(test, 0) + seconds
            if outcome != "passed" or (when == "teardown" and before == "crashed"):
                run.outcomes[test] = "failed" if before == "failed" else outcome


def _make_environment(original: Path, root: Path) -> None:
    """An environment with the packages of this one; those of the workspace are the copy's."""
    venv.create(root / ".venv", symlinks=True)
    [packages] = root.glob(PACKAGES)
    shutil.copy(HERE / "pytest_plugin.py", packages / "mutants_plugin.py")
    programs = Path(sys.executable).parent
    for program in programs.iterdir():
        copy = root / ".venv" / "bin" / program.name
        if program.is_file() and not copy.exists():
            text = program.read_bytes()
            if text.startswith(b"#!"):
                text = text.replace(str(programs).encode(), str(copy.parent).encode(), 1)
            copy.write_bytes(text)
            copy.chmod(program.stat().st_mode)
    places = [entry for entry in sys.path[1:] if not entry.startswith(sys.base_prefix)]
    copies = [place.replace(f"{original}/", f"{root}/") for place in places if "/.venv/" not in place]
    (packages / "copy.pth").write_text("\n".join([*copies, sysconfig.get_path("purelib"), ""]))
