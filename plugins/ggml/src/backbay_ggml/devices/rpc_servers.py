"""Servers of ggml's RPC, each behind a relay, so that one that dies is an error and not the end of this process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from backbay import BackendUnavailableError

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from ..library.location import VARIABLE

RELAY = Path(__file__).parent / "rpc_relay.py"
PATIENCE = 1.0  # seconds for a connection to be closed
TRIAL = 60.0  # seconds for a child to start and to greet a server
ENDPOINT = re.compile(r"[\w.-]+:\d{1,5}")

_lock = threading.Lock()
_known: dict[str, Remote] = {}
_spoken: set[str] = set()  # versions of the protocol that the library is known to take
_busy = threading.Lock()  # ggml's connections are not made for two threads, and one compute may use several
_frees: deque[tuple[tuple[Remote, ...], Callable[[], None]]] = deque()


@final
class Remote:
    """A server by its address, for as long as the process lives: ggml forgets none."""

    def __init__(self, library: Library, endpoint: str) -> None:
        self.endpoint = endpoint
        self.freed = 0  # times; servers forget the graphs they were sent, and ggml sends none twice
        self._lost: dict[str, str] = {}  # why, by the connection of ggml's that has no server any more
        add_server = procedure(library, "ggml_backend_rpc_add_server")
        self._relay, port, protocol = _start_relay(endpoint)
        try:
            _check_protocol(library, endpoint, f"127.0.0.1:{port}", protocol)
            registry = self._register(add_server, port)
        except BaseException:
            self._relay.kill()
            self._relay.communicate()
            raise
        count = library.lib.ggml_backend_reg_dev_count(registry)
        self.devices = [library.lib.ggml_backend_reg_dev_get(registry, n) for n in range(count)]

    def _register(self, add_server: Ptr, port: int) -> Ptr:
        with session(self):
            registry = ffi.cast("ggml_backend_reg_t (*)(const char *)", add_server)(
                f"127.0.0.1:{port}".encode()
            )
        if registry == NULL:
            raise BackendUnavailableError(f"the RPC server {self.endpoint} has no devices")
        return registry

    @property
    def is_relayed(self) -> bool:
        """Whether the relay runs: without it, no call to ggml would come back."""
        return self._relay.poll() is None

    def is_free(self) -> bool:
        """Whether nothing here relies on a server that is gone: then it may be tried again."""
        deadline = time.monotonic() + PATIENCE
        while self.is_relayed and time.monotonic() < deadline:
            self._listen()
            if not self._lost:
                return True
            time.sleep(0.01)
        return False

    def check(self, *, meanwhile: bool = False) -> None:
        """Raise if the server is gone, or was lost since the last check, where that is asked for."""
        if not self.is_relayed:
            self._lost[""] = f"its relay ended with {self._relay.returncode}"
        recent = self._listen()
        reasons = [*self._lost.values(), *(recent if meanwhile else [])]
        if reasons:
            raise BackendUnavailableError(f"the RPC server {self.endpoint} is gone: {reasons[0]}")

    def _listen(self) -> list[str]:
        """What was lost since the last time. The relay says so before it answers in a server's place."""
        assert self._relay.stdout is not None
        try:
            said = os.read(self._relay.stdout.fileno(), 1 << 16).decode(errors="replace")
        except BlockingIOError:
            return []
        reasons = []
        for line in said.splitlines():
            word, number, *reason = line.split(" ", 2)
            if word == "lost":
                self._lost[number] = " ".join(reason)
                reasons += reason
            else:  # ggml closed that connection: nothing relies on it any more
                self._lost.pop(number, None)
        return reasons


@contextmanager
def session(*servers: Remote) -> Iterator[None]:
    """Whatever reaches servers happens within; BackendUnavailableError if one is gone, or goes meanwhile."""
    with _busy:
        for server in servers:
            server.check()
        try:
            yield
        finally:
            _drain()
            for server in servers:
                server.check(meanwhile=True)


def free(servers: tuple[Remote, ...], how: Callable[[], None]) -> None:
    """Free something there, now or when whoever is at it has done; garbage collection may come at any time."""
    _frees.append((servers, how))
    if _busy.acquire(blocking=False):
        try:
            _drain()
        finally:
            _busy.release()


def _drain() -> None:
    while _frees:
        servers, how = _frees.popleft()
        if all(server.is_relayed for server in servers):
            how()
            for server in servers:
                server.freed += 1


def remote(library: Library, endpoint: str) -> Remote:
    """The server of an address; found and greeted the first time."""
    with _lock:
        known = _known.get(endpoint)
        if known is None or not known.is_relayed:
            _known[endpoint] = Remote(library, endpoint)
        elif not known.is_free():
            known.check()
        return _known[endpoint]


def parse_endpoints(value: Any) -> tuple[str, ...]:
    """Addresses of servers, as `127.0.0.1:50052`, separated by commas."""
    parts = value.split(",") if isinstance(value, str) else list(value)
    endpoints = tuple(part.strip() for part in parts if part.strip())
    for endpoint in endpoints:
        if not ENDPOINT.fullmatch(endpoint):
            raise ValueError(f"{endpoint!r} is not HOST:PORT")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError("the same server twice")
    return endpoints


def procedure(library: Library, name: str) -> Ptr:
    """A function of ggml's RPC code; BackendUnavailableError if the library was built without it."""
    registry = library.lib.ggml_backend_reg_by_name(b"RPC")
    address = (
        NULL if registry == NULL else library.lib.ggml_backend_reg_get_proc_address(registry, name.encode())
    )
    if address == NULL:
        raise BackendUnavailableError(
            f'{library.path} has no RPC; rebuild with CMAKE_ARGS="-DGGML_LLAMAFILE=ON -DGGML_RPC=ON" '
            "pip install --no-cache-dir --force-reinstall ggml-python"
        )
    return address


def _check_protocol(library: Library, endpoint: str, relay: str, protocol: str) -> None:
    """Newer versions of ggml end the process that meets a server of another one: so the first that does is a child."""
    if protocol in _spoken:
        return
    command = [sys.executable, "-m", "backbay_ggml.devices.rpc_greeting", relay]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TRIAL, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(f"the RPC server {endpoint} does not answer ggml's greeting") from None
    if "version mismatch" in done.stderr:
        raise BackendUnavailableError(
            f"the RPC server {endpoint} speaks version {protocol} of ggml's RPC, which ggml {library.version} of "
            f"{library.path} does not take: run a server of the same version of ggml there"
        )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it has no devices"]
        raise BackendUnavailableError(
            f"the RPC server {endpoint} cannot be used: {last[0]} (exit {done.returncode})"
        )
    _spoken.add(protocol)


def _start_relay(endpoint: str) -> tuple[subprocess.Popen[bytes], int, str]:
    """Its process, which ends with this one, its port, and the version of the protocol that the server speaks."""
    command = [sys.executable, "-I", str(RELAY), endpoint]
    relay = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert relay.stdout is not None
    word, _, rest = relay.stdout.readline().decode(errors="replace").strip().partition(" ")
    if word != "ready":
        relay.communicate()
        raise BackendUnavailableError(f"no RPC server at {endpoint}: {rest or 'the relay did not start'}")
    os.set_blocking(relay.stdout.fileno(), False)
    port, _, protocol = rest.partition(" ")
    return relay, int(port), protocol
