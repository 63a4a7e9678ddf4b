"""Ctrl-C, and kill -9, of whole programs: they end properly, and leave no process behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

import pytest
from patience import wait_until
from small_llama import write_small_llama

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
BACKENDS = ["cpu_ref", "ggml", "onnx"]
ENDLESS = ["--num-keep", "1", "-n", "100000000", "--quiet"]
MARK = "BACKBAY_TEST_MARK"


class Program:
    """A program in a process group of its own, whose children carry its mark."""

    def __init__(self, *words: str, **variables: str) -> None:
        self.mark = uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, **variables, MARK: self.mark},
            start_new_session=True,
        )

    def read(self, size: int) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read(size)

    def drop(self, stream: IO[bytes]) -> None:
        """Read what has come."""
        while select.select([stream], [], [], 0)[0] and stream.read(1 << 16):
            pass

    def interrupt_an_answer(self) -> None:
        """Send Ctrl-C, and read until a line on standard error tells that the answer has ended."""
        output, errors = self.process.stdout, self.process.stderr
        assert output is not None
        assert errors is not None
        self.drop(errors)
        self.interrupt()
        told = b""
        while b"\n" not in told:
            for stream in select.select([output, errors], [], [])[0]:
                data = stream.read(1 << 16)
                assert data, self.end()
                told += data if stream is errors else b""
        self.drop(output)

    def interrupt(self) -> None:
        """Send Ctrl-C, as a terminal does, to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def running(self) -> list[str]:
        """The command lines of all processes of this program."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def end(self) -> tuple[int, bytes, bytes]:
        """The exit status and the rest of the output; nothing may be left running."""
        output, errors = self.process.communicate(timeout=300)
        wait_until(lambda: not self.running())
        return self.process.returncode, output, errors


@contextmanager
def started(*words: str, **variables: str) -> Iterator[Program]:
    program = Program(*words, **variables)
    with program.process:
        try:
            yield program
        finally:
            program.process.kill()


IMPORTING = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "numpy":
            print("!", end="", flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Slow())
sys.argv = ["backbay", "list"]
from backbay_command import console
console()
"""


@pytest.mark.fault("Ctrl-C while a command is still importing", "exit status 130 at once, and no traceback")
def test_ctrl_c_ends_a_command_that_is_still_importing() -> None:
    with started("-c", IMPORTING) as program:
        assert program.read(1) == b"!"
        program.interrupt()
        assert program.end() == (130, b"", b"")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that ends no answer."""
    return str(write_small_llama(tmp_path_factory.mktemp("models") / "endless.gguf", endless=True))


@pytest.mark.fault("Ctrl-C in the midst of an answer of backbay run", "exit status 130, nothing left running")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chat", [[], ["--chat"]], ids=["plain", "chat"])
@pytest.mark.few(2)
def test_ctrl_c_ends_an_answer(model: str, backend: str, chat: list[str]) -> None:
    words = ["run", model, "--backend", backend, "-p", "Once", *chat, *ENDLESS]
    with started("-m", "backbay", *words) as program:
        assert program.read(40)
        program.interrupt()
        status, _, errors = program.end()
    assert (status, errors) == (130, b"")


@pytest.mark.fault("Ctrl-C in a chat of backbay run", "the answer ends, the chat goes on")
def test_ctrl_c_in_a_chat_ends_one_answer(tmp_path: Path) -> None:
    """The end of an answer is told on standard error."""
    model = write_small_llama(
        tmp_path / "endless.gguf", endless=True, context=1 << 17
    )  # holds any first answer
    words = ["--context", str(1 << 17), *(word for word in ENDLESS if word != "--quiet")]
    with started("-m", "backbay", "run", str(model), "--backend", "ggml", "--chat", *words) as program:
        assert program.process.stdin is not None
        for _ in range(2):
            program.process.stdin.write(b"Hello\n")
            program.process.stdin.flush()
            assert program.read(60), program.end()
            program.interrupt_an_answer()
        status, _, errors = program.end()
    assert (status, errors) == (0, b"")


@pytest.mark.fault("Ctrl-C while backbay run starts", "exit status 130, nothing left running")
@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.0])
@pytest.mark.few(1)
def test_ctrl_c_while_starting(model: str, after: float) -> None:
    with started("-m", "backbay", "run", model, "-p", "Once", *ENDLESS) as program:
        wait_until(lambda: len(program.running()) >= 2)  # it probes the backends
        time.sleep(after)
        program.interrupt()
        status, _, errors = program.end()
    assert (status, b"Traceback" in errors) == (130, False), errors.decode()


def plugin(folder: Path, group: str, code: str) -> str:
    """A folder for PYTHONPATH, with an installed plugin that hangs."""
    (folder / "hanging_plugin.py").write_text(code)
    facts = folder / "backbay_hanging-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: backbay-hanging\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[backbay.{group}]\nhanging = hanging_plugin\n")
    return str(folder)


TEXT_AS_CODE = """
exec("import time; print('!', end='', flush=True); time.sleep(600)")
"""


def test_ctrl_c_while_a_text_runs_as_code(tmp_path: Path) -> None:
    """Python ends such a program by the signal itself, even if it has caught KeyboardInterrupt."""
    with started(
        "-m", "backbay", "hanging", PYTHONPATH=plugin(tmp_path, "commands", TEXT_AS_CODE)
    ) as program:
        assert program.read(1) == b"!"
        program.interrupt()
        assert program.end() == (130, b"", b"")


HANGING = """
import time
from backbay import Backend, hookimpl

@hookimpl
def backbay_backend() -> type[Backend]:
    time.sleep(600)
"""


@pytest.fixture
def hanging_plugin(tmp_path: Path) -> str:
    """A folder for PYTHONPATH, with a backend that hangs."""
    return plugin(tmp_path, "backends", HANGING)


@pytest.mark.fault(
    "Ctrl-C while a backend that hangs is probed", "the command ends at once, and the probe with it"
)
@pytest.mark.parametrize("end", ["interrupt", "kill"])
@pytest.mark.few(1)
def test_a_probe_that_hangs_ends_with_its_program(hanging_plugin: str, end: str) -> None:
    with started("-m", "backbay", "doctor", PYTHONPATH=hanging_plugin) as program:
        wait_until(lambda: len(program.running()) >= 2)
        time.sleep(1)
        program.interrupt() if end == "interrupt" else program.process.kill()
        status, _, errors = program.end()
    assert status == (130 if end == "interrupt" else -signal.SIGKILL)
    assert b"Traceback" not in errors


@pytest.mark.fault("the conformance suite is interrupted or killed (kill -9)", "its workers end too")
@pytest.mark.parametrize("end", ["interrupt", "kill"])
@pytest.mark.few(1)
def test_the_workers_of_the_suite_end_with_it(end: str) -> None:
    words = ["conform", "cpu_ref", "--size", "smoke", "--jobs", "2"]
    with started("-m", "backbay", *words) as program:
        wait_until(lambda: len(program.running()) >= 3)
        time.sleep(0.5)
        program.interrupt() if end == "interrupt" else program.process.kill()
        status, _, errors = program.end()
    assert status == (130 if end == "interrupt" else -signal.SIGKILL)
    assert b"Traceback" not in errors
