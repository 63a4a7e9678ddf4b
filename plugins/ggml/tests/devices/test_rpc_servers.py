"""Servers that are missing, full or die: each is an error, and never ends this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from layered_model import Model, generate, write_model
from rpc_servers import Server, free_port, serving, using, works

import backbay
from backbay import (
    BackendParams,
    BackendUnavailableError,
    CancelledError,
    DType,
    GPULayers,
    GPULayersList,
    NoMemoryError,
    OptionError,
)
from backbay_ggml import Ggml
from backbay_ggml.devices import rpc_relay
from backbay_ggml.devices.rpc_servers import find_server, rpc_session, session_lock
from backbay_ggml.library.abi import NULL
from backbay_ggml.library.library import load_library

pytestmark = pytest.mark.skipif(
    load_library().lib.ggml_backend_reg_by_name(b"RPC") == NULL, reason="this library has no RPC"
)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small.gguf")


def cpu_works() -> bool:
    with Ggml(None, BackendParams(num_threads=1)) as backend:
        return works(backend)


# -- addresses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", ["localhost", "127.0.0.1:", "http://127.0.0.1:50052", "127.0.0.1:1,127.0.0.1:1", 7]
)
def test_a_malformed_address_is_refused(wrong) -> None:
    with pytest.raises(OptionError, match="rpc"):
        Ggml(None, using(wrong))


def test_a_missing_server_is_named_in_the_error() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    with pytest.raises(BackendUnavailableError, match=f"no RPC server at {endpoint}"):
        Ggml(None, using(endpoint))
    assert cpu_works()


@pytest.mark.parametrize("wrong", ["0.0.0.0:50052", "192.168.1.1:50052"])
def test_our_server_listens_on_the_loopback_interface_only(wrong) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backbay_ggml.rpc_server", wrong], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "loopback" in done.stderr


def test_our_server_ends_when_its_input_ends() -> None:
    server = Server()
    server.process.stdin.close()
    assert server.process.wait(300) == 0


# -- servers that die --------------------------------------------------------------------------------------


def test_a_server_that_dies_between_computes_is_an_error() -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend:
        with backend.new_context() as ctx:
            x = ctx.from_floats(np.ones(100))
            y = x.sqr(ctx)
            ctx.compute(y)
            server.kill()
            with pytest.raises(BackendUnavailableError, match="is gone"):
                ctx.compute(y)
        with pytest.raises(BackendUnavailableError, match="is gone"):
            works(backend)
    assert cpu_works()


@pytest.mark.fault(
    "an RPC server dies in the midst of a compute", "BackendUnavailableError; the process goes on"
)
@pytest.mark.parametrize("after", [0.0, 0.05, 0.3])
@pytest.mark.few(1)
def test_a_server_that_dies_during_a_compute_is_an_error(after) -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend, backend.new_context() as ctx:
        w = ctx.zeros(DType.F32, 1024, 1024)
        y = w
        for _ in range(100):
            y = w.mulmat(ctx, y)
        ctx.reserve()
        timer = threading.Timer(after, server.kill)
        timer.start()
        with pytest.raises(BackendUnavailableError, match="is gone"):
            ctx.compute(y)
        timer.join()
    assert cpu_works()


@pytest.mark.fault(
    "an RPC server dies while weights are sent", "BackendUnavailableError; the process goes on"
)
def test_a_server_that_dies_while_weights_are_sent_is_an_error(path) -> None:
    with serving() as server, backbay.open(path, backend="ggml", params=using(server.endpoint)) as backend:
        seen: list[float] = []

        def progress(done: float) -> None:
            seen.append(done)
            if len(seen) == 4:
                server.kill()

        with pytest.raises(BackendUnavailableError, match="is gone"):
            backend.load(progress)
        assert not backend.loaded
    assert cpu_works()


def test_a_server_that_comes_back_serves_again(path) -> None:
    with serving() as server:
        with backbay.open(path, backend="ggml", params=using(server.endpoint)) as backend:
            backend.load()
            before = generate(backend)
            server.kill()
            with pytest.raises(BackendUnavailableError):
                generate(backend)
        with (
            serving(port=server.port) as again,
            backbay.open(path, backend="ggml", params=using(again.endpoint)) as backend,
        ):
            backend.load()
            for ours, first in zip(generate(backend), before, strict=True):
                np.testing.assert_array_equal(ours, first)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop all threads of a child, which takes a moment, and return when they stand still."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


@pytest.mark.fault(
    "an RPC server stops (SIGSTOP) between two computes", "BackendUnavailableError after rpc_timeout"
)
def test_a_server_that_stops_is_an_error_after_the_timeout_and_serves_again_later() -> None:
    with serving() as server:
        with Ggml(None, using(server.endpoint)) as backend, backend.new_context() as ctx:
            y = ctx.from_floats(np.ones(100)).sqr(ctx)
            ctx.compute(y)
            stop(server.process)
            find_server(backend.library, server.endpoint, 0.5)
            with pytest.raises(BackendUnavailableError, match=r"did not answer within 0\.5 s .*rpc_timeout"):
                ctx.compute(y)
            with pytest.raises(BackendUnavailableError, match="is gone"):
                works(backend)
            assert cpu_works()
        server.process.send_signal(signal.SIGCONT)
        with Ggml(None, using(server.endpoint)) as backend:
            assert works(backend)


def test_a_loss_in_a_session_is_its_error_though_another_backend_opens_meanwhile() -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend:
        known = find_server(backend.library, server.endpoint)
        told = pytest.raises(BackendUnavailableError, match="is gone: it closed the connection")
        with told, session_lock(), rpc_session(known):
            known.relay.losses.append("it closed the connection")
            find_server(backend.library, server.endpoint)
        assert works(backend)


@pytest.mark.fault(
    "an RPC server stops (SIGSTOP) in mid-compute", "BackendUnavailableError after rpc_timeout"
)
def test_a_server_that_stops_during_a_compute_is_an_error() -> None:
    with (
        serving() as server,
        Ggml(None, using(server.endpoint)) as backend,
        backend.new_context() as ctx,
    ):
        w = y = ctx.zeros(DType.F32, 1024, 1024)
        for _ in range(100):
            y = w.mulmat(ctx, y)
        ctx.reserve()
        find_server(backend.library, server.endpoint, 0.5)
        timer = threading.Timer(0.1, lambda: server.process.send_signal(signal.SIGSTOP))
        timer.start()
        with pytest.raises(BackendUnavailableError, match="did not answer"):
            ctx.compute(y)
        timer.join()
    assert cpu_works()


@pytest.mark.fault("an RPC server is stopped before it is opened", "BackendUnavailableError within seconds")
@pytest.mark.thorough
def test_a_stopped_server_is_not_opened() -> None:
    with serving() as server:
        stop(server.process)
        with pytest.raises(BackendUnavailableError, match="is it stopped"):
            Ggml(None, using(server.endpoint))


@pytest.mark.parametrize("wrong", [0, -1, "soon", float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(wrong) -> None:
    with pytest.raises(OptionError, match="rpc_timeout"):
        Ggml(None, using("127.0.0.1:1", rpc_timeout=wrong))


def children() -> set[int]:
    return {
        int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()
    }


@pytest.mark.fault(
    "all child processes are killed while an RPC server computes", "the answer: no process is between"
)
def test_no_process_stands_between_ggml_and_a_server() -> None:
    others = children()  # such as the servers of other tests
    with serving() as server, Ggml(None, using(server.endpoint)) as backend:
        for child in children() - others - {server.process.pid}:
            os.kill(child, signal.SIGKILL)
        assert works(backend)


@contextmanager
def pretending(answers: bytes) -> Iterator[str]:
    """A server that answers every request with the same bytes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            try:
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(1 << 16)
                        client.sendall(answers)
                        client.settimeout(0.2)
                        client.recv(1 << 16)
            except TimeoutError:
                serve()
            except OSError:
                return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def greeting(major: int) -> bytes:
    return (28).to_bytes(8, "little") + bytes([major, 0, 0, 0]) + bytes(24)


@pytest.mark.parametrize(
    ("answers", "message"),
    [(b"HTTP/1.1 400 Bad Request", "no RPC server"), (b"", "no RPC server"), (greeting(99), "version 99")],
)
@pytest.mark.thorough
def test_other_programs_and_unknown_protocols_are_refused(answers, message) -> None:
    with pretending(answers) as endpoint, pytest.raises(BackendUnavailableError, match=message):
        Ggml(None, using(endpoint))
    assert cpu_works()


def test_a_server_of_another_version_of_ggml_is_refused() -> None:
    with serving() as server, rpc_relay.connect(("127.0.0.1", server.port)) as connection:
        ours = rpc_relay.greet(connection)[0]
    for major in rpc_relay.EMPTY_ANSWERS.keys() - {ours}:
        with (
            pretending(greeting(major)) as endpoint,
            pytest.raises(BackendUnavailableError, match="same version"),
        ):
            Ggml(None, using(endpoint))
    assert cpu_works()


@pytest.mark.fault("an RPC server sends nonsense", "BackendUnavailableError; the process goes on")
@pytest.mark.thorough
def test_a_server_that_sends_nonsense_is_an_error() -> None:
    known = max(rpc_relay.EMPTY_ANSWERS)
    with pretending(greeting(known) + b"nonsense" * 4) as endpoint, pytest.raises(BackendUnavailableError):
        Ggml(None, using(endpoint))
    assert cpu_works()


class Later:
    """A cancellation after a compute has begun."""

    def __init__(self) -> None:
        self.asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > 3


def test_a_compute_on_a_server_is_cancelled_between_its_parts() -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend, backend.new_context() as ctx:
        x = y = ctx.from_floats(np.ones((8, 8)))
        for _ in range(300):
            y = x.mulmat(ctx, y).scale(ctx, 1 / 8)
        with pytest.raises(CancelledError):
            ctx.compute(y, cancel=Later())
        ctx.compute(y, cancel=threading.Event())
        np.testing.assert_array_equal(y.numpy(), np.ones((8, 8)))


def test_a_graph_is_computed_again_after_memory_was_freed_on_the_server() -> None:
    with serving() as server, Ggml(None, using(server.endpoint)) as backend, backend.new_context() as ctx:
        y = ctx.from_floats([3.0]).sqr(ctx)
        for _ in range(2):
            ctx.compute(y)
        with backend.new_context() as other:
            other.from_floats([1.0])
        ctx.compute(y)
        assert y.floats().tolist() == [9.0]


# -- memory ------------------------------------------------------------------------------------------------


def opened_and_used(path: Path, params: BackendParams) -> None:
    with backbay.open(path, backend="ggml", params=params) as backend:
        backend.load()
        generate(backend)


@pytest.mark.parametrize("part", ["weights", "cache", "graph"])
def test_a_limit_on_the_second_device_is_kept_and_the_process_goes_on(path, part) -> None:
    gpus = GPULayersList([GPULayers("RPC:0", range(5))])
    with serving() as server:
        free = using(server.endpoint, gpu_layers=gpus, alloc_memory=False)
        with backbay.open(path, backend="ggml", params=free) as backend, Model(backend).store:
            held = backend.memory().gpus[0]
        weights, cache = sum(m.size for m in held.weights), sum(m.size for m in held.cache)
        limit = {"weights": weights // 2, "cache": weights + cache // 2, "graph": weights + cache + 1000}[
            part
        ]
        params = using(server.endpoint, gpu_layers=gpus, max_memory={"RPC:0": limit})
        with pytest.raises(NoMemoryError) as caught:
            opened_and_used(path, params)
        failed = [row[:2] for row in caught.value.memory.rows() if row[3].status.name == "Failed"]
        assert failed == [("RPC:0", part)]
        with Ggml(None, using(server.endpoint)) as backend:
            assert works(backend)


@pytest.mark.fault("an RPC server lacks memory", "NoMemoryError; what was sent is freed")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the server limits itself by what it uses")
@pytest.mark.parametrize(
    "too_much",
    [
        lambda ctx: ctx.zeros(DType.F32, 1 << 28),
        lambda ctx: ctx.compute(ctx.from_floats([1.0]).repeat(ctx, 0, 1 << 28).sum_rows(ctx)),
    ],
    ids=["leaf", "graph"],
)
def test_memory_that_a_server_lacks_is_refused_and_freed(too_much) -> None:
    with serving(memory=256 << 20) as server, Ggml(None, using(server.endpoint)) as backend:
        for _ in range(2):
            with backend.new_context() as ctx, pytest.raises(NoMemoryError) as caught:
                too_much(ctx)
            failed = [row[:2] for row in caught.value.memory.rows() if row[3].status.name == "Failed"]
            assert failed == [("RPC:0", "graph")]
            assert works(backend)
        assert backend.memory().total() == 0


def test_a_context_that_does_not_fit_leaves_the_others_usable() -> None:
    with (
        serving(memory=256 << 20) as server,
        Ggml(None, using(server.endpoint)) as backend,
        backend.new_context() as small,
        backend.new_context() as large,
    ):
        y = small.from_floats(np.arange(8)).sqr(small).neg(small)
        small.compute(y)
        with pytest.raises(NoMemoryError):
            large.compute(large.from_floats([1.0]).repeat(large, 0, 1 << 28).sum_rows(large))
        small.compute(y)
        assert y.floats().tolist() == [-n * n for n in range(8)]


@pytest.mark.thorough
def test_the_conformance_suite_passes_over_the_cpu_and_a_server() -> None:
    profiles = "attention,cache,graph,memory,errors"
    with serving() as server:
        command = [sys.executable, "-m", "backbay", "conform", "ggml", "--option", f"rpc={server.endpoint}"]
        done = subprocess.run(
            [*command, "--size", "smoke", "--profile", profiles, "--jobs", "1"],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
