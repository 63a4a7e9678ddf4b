"""RPC servers, while their clients are interrupted by Ctrl-C, or fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from moments import interrupt_everywhere
from rpc_servers import serving, using, works

from backbay_ggml import Ggml
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import load_library

pytestmark = pytest.mark.skipif(
    load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL, reason="this library has no RPC"
)


@pytest.mark.fault(
    "Ctrl-C while an RPC server computes", "KeyboardInterrupt; the server and the backend go on"
)
@pytest.mark.parametrize("after", [0.0, 0.1, 0.4])
@pytest.mark.few(1)
def test_ctrl_c_reaches_the_program_alone(after) -> None:
    with serving() as server:
        program = [sys.executable, "-c", INTERRUPTED, server.endpoint]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            limit = threading.Timer(300, process.kill)
            limit.start()
            assert process.stdout.readline() == "computing\n"
            time.sleep(after)
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            output, _ = process.communicate()
            limit.cancel()
        assert (process.returncode, output) == (0, "interrupted\n9.0\n")


INTERRUPTED = """
import sys
from backbay import BackendParams, DType
from backbay_ggml import Ggml

with Ggml(None, BackendParams(options={"rpc": sys.argv[1]})) as backend:
    with backend.new_context() as ctx:
        w = y = ctx.zeros(DType.F32, 512, 512)
        for _ in range(100):
            y = w.mulmat(ctx, y)
        ctx.compute(y)
        try:
            print("computing", flush=True)
            while True:
                ctx.compute(y)
        except KeyboardInterrupt:
            print("interrupted")
    with backend.new_context() as ctx:
        y = ctx.from_floats([3.0]).sqr(ctx)
        ctx.compute(y)
        print(y.floats()[0])
"""


@pytest.mark.fault("Ctrl-C at any moment of work on an RPC server", "later work on the server goes on")
def test_a_server_works_after_an_interrupt_at_any_moment(monkeypatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # an interrupt in a finalizer goes no further
    with serving() as server, Ggml(None, using(server.endpoint)) as backend:

        def use() -> None:
            assert works(backend)

        use()
        assert interrupt_everywhere(use, stride=3) > 50


def test_ctrl_c_ends_our_server() -> None:
    with serving() as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(300) == -signal.SIGINT


@pytest.mark.fault(
    "a forked child opens an RPC server that its parent has used", "it works, in the child too"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_a_relay_of_its_own() -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend:
        assert works(backend)
        child = os.fork()
        if child == 0:
            try:
                with Ggml(None, using(server.endpoint)) as other:
                    os._exit(0 if works(other) else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert works(backend)


@pytest.mark.fault(
    "a process forks while it uses an RPC server, which it then closes", "the server is free again"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_keeps_no_connection_of_its_parent() -> None:
    with serving() as server:
        with Ggml(None, using(server.endpoint)) as backend, backend.new_context() as ctx:
            y = ctx.from_floats([3.0]).sqr(ctx)
            ctx.compute(y)
            closed, closing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.close(closing)
                    os.read(closed, 1)  # until the parent has closed its backend
                    with Ggml(None, using(server.endpoint)) as other:
                        os._exit(0 if works(other) else 2)
                finally:
                    os._exit(1)
            os.close(closed)
            ctx.compute(y)
            assert y.floats().tolist() == [9.0]
        os.close(closing)
        assert os.waitpid(child, 0)[1] == 0
