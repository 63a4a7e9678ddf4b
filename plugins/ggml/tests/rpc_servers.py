"""RPC servers in child processes, on the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from patience import PATIENCE, wait_until

import backbay
from backbay import BackendParams


class Server:
    """One server; it ends with this process at the latest."""

    def __init__(self, *, devices: int = 1, memory: int | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self.endpoint = f"127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "backbay_ggml.rpc_server", self.endpoint, "--until-eof"]
        command += ["--threads", "1", "--devices", str(devices)]
        command += ["--memory", str(memory)] if memory is not None else []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        self._wait()

    def _wait(self) -> None:
        """Wait until the server listens."""
        wait_until(lambda: self._listens() or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise RuntimeError(f"the RPC server does not listen; it ended with {self.process.poll()}")

    def _listens(self) -> bool:
        with socket.socket() as trial:
            return trial.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def serving(**options: int | None) -> Iterator[Server]:
    """A server, closed at the end."""
    server = Server(**options)
    try:
        yield server
    finally:
        server.close()


def using(endpoint: str, rpc_timeout: object = PATIENCE, **params) -> BackendParams:
    return BackendParams(num_threads=1, options={"rpc": endpoint, "rpc_timeout": rpc_timeout}, **params)


def works(backend: backbay.Backend) -> bool:
    with backend.new_context() as ctx:
        y = ctx.from_floats([3.0]).sqr(ctx)
        ctx.compute(y)
        return y.floats().tolist() == [9.0]


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])
