"""Hosts of workers: whatever ends a host ends its worker, and Ctrl+C and forks leave the worker alone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from worker_processes import is_gone

MODEL = str(Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf")
OPENED = f"""
import os, signal, sys
from backbay_engine import load
llm = load({MODEL!r}, "cpu_ref", num_threads=1, worker=True)
endless = {{"temperature": 0, "num_keep": 0, "logit_bias": dict.fromkeys(llm.end_ids, float("-inf"))}}
running = llm.submit("sum 1 2 =", **endless)
next(iter(running))
print(llm.worker_pid, flush=True)
"""


def started(program, *, text=OPENED):
    """A host that runs a program, and the id of its worker's process."""
    host = subprocess.Popen([sys.executable, "-c", text + program], stdout=subprocess.PIPE, text=True)
    return host, int(host.stdout.readline())


@pytest.mark.fault("the host of a worker is killed by SIGKILL", "no orphan: the worker ends too")
@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_host_leaves_no_orphan(stopped):
    host, worker = started("signal.pause()")
    with host:
        if stopped and sys.platform == "linux":  # it cannot read that its pipe ends
            os.kill(worker, signal.SIGSTOP)
        host.kill()
    assert is_gone(worker)


@pytest.mark.fault("the host of a worker is killed while a forked child holds the pipe", "no orphan")
def test_a_forked_child_keeps_no_orphan_alive():
    host, worker = started("if child := os.fork():\n    print(child, flush=True)\nsignal.pause()")
    with host:
        child = int(host.stdout.readline())
        host.kill()
    try:
        assert is_gone(worker)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.fault("the interpreter ends while a model with a worker is open", "exit status 0, and no orphan")
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "del llm", "globals().clear()"])
@pytest.mark.few(2)
def test_an_interpreter_that_ends_takes_the_worker_with_it(end):
    host, worker = started(end)
    with host:
        assert host.wait(300) == 0
    assert is_gone(worker)


@pytest.mark.fault(
    "a forked child uses a model with a worker",
    "ClosedError naming fork and the remedy; the parent's worker goes on",
)
def test_a_forked_child_is_told_so_and_the_parent_goes_on():
    program = """
from backbay import ClosedError
child = os.fork()
if child == 0:
    for use in (lambda: llm.generate("x"), lambda: running.result(300), llm.memory, llm.forget):
        try:
            use()
        except ClosedError as error:
            print("fork" in str(error) and "spawn" in str(error), flush=True)
    llm.close()
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
running.cancel()
print(running.result(300).finish_reason, bool(llm.generate("x", max_tokens=2, **endless).tokens), flush=True)
llm.close()
"""
    host, worker = started(program)
    with host:
        said = host.stdout.read().split("\n")
        assert host.wait(300) == 0
    assert said == ["True"] * 4 + ["3", "cancelled True", ""]
    assert is_gone(worker)


@pytest.mark.fault("Ctrl+C in `backbay run --worker`", "exit status 130, and no message of the worker")
def test_ctrl_c_ends_a_run_with_a_worker():
    words = ["-m", "backbay", "run", MODEL, "--backend", "cpu_ref", "--worker", "-p", "sum 1 2 ="]
    endless = ["--num-keep", "4", "--temperature", "2", "--top-p", "1"]
    host = subprocess.Popen(
        [sys.executable, *words, *endless],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,  # as a shell does with the command of a terminal
    )
    with host:
        try:
            assert host.stdout.read(1)
            workers = children(host.pid)
            os.killpg(host.pid, signal.SIGINT)
            assert host.wait(300) in (0, 130)  # 0: the answer was over
            said = host.stderr.read()
            assert b"worker" not in said
            assert b"Traceback" not in said
        finally:
            host.kill()
    assert all(map(is_gone, workers))


def children(pid):
    """The processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.fault("standard error of a host is closed", "a worker works as ever")
def test_a_worker_needs_no_standard_error():
    text = "import os\nos.close(2)\n" + OPENED
    host, worker = started("running.cancel()\nprint(running.result().finish_reason)", text=text)
    with host:
        assert host.stdout.read() == "cancelled\n"
    assert is_gone(worker)


def test_a_worker_finds_the_folders_that_the_host_added(tmp_path):
    (tmp_path / "mine.py").write_text(
        'import backbay\nclass Mine(backbay.backends()["cpu_ref"].load()):\n    name = "mine"\n'
    )
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from mine import Mine
from backbay_engine import load
with load({MODEL!r}, Mine, worker=True) as llm:
    print(bool(llm.generate("x", max_tokens=2).text is not None))
with load({MODEL!r}, "mine:Mine", worker=True) as llm:
    print(bool(llm.generate("x", max_tokens=2).text is not None))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "True\nTrue\n"


def test_a_new_worker_starts_in_the_folder_of_the_first(tmp_path):
    program = f"""
import os, shutil, signal, sys
os.chdir({str(tmp_path)!r})
shutil.copy({MODEL!r}, "here.gguf")
from backbay_engine import load
with load("here.gguf", "cpu_ref", worker=True) as llm:
    os.chdir("/")
    os.kill(llm.worker_pid, signal.SIGKILL)
    print(len(llm.logits([1, 2])))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "2\n"


def test_a_worker_ends_without_warnings():
    command = [sys.executable, "-W", "error", "-c", OPENED + "running.cancel()\nllm.close()\n"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stderr == ""


@pytest.mark.fault("a host has no files left to start a worker", "BackendUnavailableError with the limit")
def test_a_host_without_files_is_told_the_limit():
    program = f"""
import resource
from backbay import BackendUnavailableError
from backbay_engine import load
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
try:
    load({MODEL!r}, "cpu_ref", worker=True)
except BackendUnavailableError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "8 files open (ulimit -n)" in said.stdout
    assert "None" not in said.stdout
