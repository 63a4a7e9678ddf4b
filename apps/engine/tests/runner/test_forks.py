"""Forks: in a forked child, what the parent opened is closed, says so, and lets the child exit."""

import subprocess
import sys
from pathlib import Path

import pytest

import backbay

MODEL = Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf"
PROGRAM = """
import multiprocessing, os, sys, threading
import backbay
from backbay_engine import load

name, path = sys.argv[1:]
llm = load(path, backend=name)
assert llm.generate("sum 417 268 =", temperature=0).text
backend = backbay.open(None, backend=name)
ctx = backend.new_context()
x = ctx.from_floats([1.0, 4.0])
y = x.sqrt(ctx)
ctx.compute(y)
running = llm.submit("sum 1 2 =", max_tokens=200, stop=())

def refused(what, call):
    try:
        call()
    except backbay.ClosedError as error:
        text = str(error)
        print(what, "ok" if "fork" in text and "spawn" in text else text, flush=True)
    except BaseException as error:
        print(what, type(error), error, flush=True)
    else:
        print(what, "worked", flush=True)

def tried():
    refused("generate", lambda: llm.generate("sum 1 2 ="))
    refused("stream", lambda: next(llm.stream("sum 1 2 =")))
    refused("chat", lambda: llm.chat([{"role": "user", "content": "hello"}]))
    refused("logits", lambda: llm.logits("sum 1 2 ="))
    refused("memory", llm.memory)
    refused("running", lambda: running.result(300))
    refused("compute", lambda: ctx.compute(y))
    refused("trace", lambda: x.neg(ctx))
    refused("read", y.floats)
    refused("leaf", x.floats)
    refused("write", lambda: x.from_floats([1.0, 2.0]))
    refused("context", backend.new_context)
    refused("get", lambda: backend.get("x"))
    llm.close()
    ctx.close()
    backend.close()

def ask():
    return llm.generate("sum 1 2 =").text

child = os.fork()
if child == 0:
    tried()
    sys.exit(7)
_, status = os.waitpid(child, 0)
print("exit", os.waitstatus_to_exitcode(status), flush=True)

pool = multiprocessing.get_context("fork").Pool(1)
try:
    pool.apply(ask)
except backbay.ClosedError as error:
    print("pool", "ok" if "fork" in str(error) else error)
pool.close()
pool.join()

running.result(300)
print("parent", llm.generate("sum 417 268 =", temperature=0).text, flush=True)
llm.close()
"""


@pytest.mark.fault(
    "a forked child, or a pool of forked children, uses the parent's model",
    "ClosedError naming fork and the remedy; the child exits",
)
@pytest.mark.parametrize("name", sorted(backbay.backends()))
@pytest.mark.few(1)
def test_a_forked_child_is_told_so_and_exits(name: str):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, MODEL], capture_output=True, text=True, timeout=300, check=False
    )
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    ended = {"exit": said.pop("exit", ""), "parent": said.pop("parent", "").strip()}
    assert said, done.stderr
    assert set(said.values()) == {"ok"}, (said, done.stderr)
    assert ended == {"exit": "7", "parent": "685"}, (ended, done.stderr)
    assert done.returncode == 0, done.stderr


def test_a_child_may_load_its_own_model():
    program = (
        "import os, sys\nfrom backbay_engine import load\n"
        "load(sys.argv[1], backend='cpu_ref').close()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with load(sys.argv[1], backend='cpu_ref') as llm: print(llm.generate('sum 417 268 =', temperature=0).text)\n"
        "    sys.exit(0)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, MODEL], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "685" in done.stdout


WHILE_COMPUTING = """
import faulthandler, os, sys, threading
import numpy as np
import backbay
from backbay.backend import helper_processes as forks

faulthandler.dump_traceback_later(250, exit=True)
forks.PATIENCE = 250.0
backend = backbay.open(None, backend=sys.argv[1])
ctx = backend.new_context()
w = ctx.from_floats(np.ones((256, 2048), np.float32))  # large enough for a BLAS to use several threads
x = ctx.from_floats(np.ones((256, 2048), np.float32))
y = w.mulmat(ctx, x)
ctx.compute(y)
ended = threading.Event()

def compute():
    while not ended.is_set():
        ctx.compute(y)

thread = threading.Thread(target=compute)
thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
ended.set()
thread.join()
print(y.floats().max())
"""


@pytest.mark.fault("the process forks while a product runs", "both go on")
@pytest.mark.parametrize("name", sorted(backbay.backends()))
@pytest.mark.few(1)
def test_forks_in_the_midst_of_a_compute_harm_neither(name: str):
    command = [sys.executable, "-W", "ignore", "-c", WHILE_COMPUTING, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["2048.0"], done.stderr
