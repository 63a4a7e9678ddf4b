"""Connections to RPC servers, each through a relay process: a server that dies is an error, not the end of ours."""

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
from ..library.compiler_flags import COMMAND
from ..library.library import Library
from ..library.location import VARIABLE

RELAY = Path(__file__).parent / "rpc_relay.py"
CLOSE_SECONDS = 1.0  # for ggml to close a lost connection
GREETING_SECONDS = 60.0  # for a child process to start and to greet a server
ENDPOINT = re.compile(r"[\w.-]+:\d{1,5}")

_lock = threading.Lock()
_servers: dict[str, RpcServer] = {}  # by address
_protocols: set[str] = set()  # versions that the library is known to accept
_busy = threading.Lock()  # ggml's connections serve one thread at a time, and a compute may use several
_frees: deque[tuple[tuple[RpcServer, ...], Callable[[], None]]] = deque()


@final
class RpcServer:
    """A server, by its address. It is kept until the process ends, because ggml keeps it too."""

    def __init__(self, library: Library, endpoint: str) -> None:
        self.endpoint = endpoint
        # How often memory was freed there: a server then forgets its graphs, but ggml does not send them again.
        self.freed = 0
        self._lost: dict[str, str] = {}  # reasons, by the number of the lost connection
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
        """Whether the relay runs; without it, calls of ggml would never return."""
        return self._relay.poll() is None

    def is_free(self) -> bool:
        """Whether no lost connection is open any more; then the server may be tried again."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.is_relayed and time.monotonic() < deadline:
            self._listen()
            if not self._lost:
                return True
            time.sleep(0.01)
        return False

    def check(self, *, meanwhile: bool = False) -> None:
        """BackendUnavailableError if the server is gone; with `meanwhile`, also if it was lost since the last check."""
        if not self.is_relayed:
            self._lost[""] = f"its relay ended with {self._relay.returncode}"
        recent = self._listen()
        reasons = [*self._lost.values(), *(recent if meanwhile else [])]
        if reasons:
            raise BackendUnavailableError(f"the RPC server {self.endpoint} is gone: {reasons[0]}")

    def _listen(self) -> list[str]:
        """Why connections were lost since the last call; the relay tells this before it answers for a server."""
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
            else:  # ggml closed the connection
                self._lost.pop(number, None)
        return reasons


@contextmanager
def session(*servers: RpcServer) -> Iterator[None]:
    """Must surround every call that reaches servers; BackendUnavailableError if one is gone, before or after."""
    with _busy:
        for server in servers:
            server.check()
        try:
            yield
        finally:
            _drain()
            for server in servers:
                server.check(meanwhile=True)


def free_on(servers: tuple[RpcServer, ...], free: Callable[[], None]) -> None:
    """Free memory on servers, now or at the end of the running session; it may be called at any time."""
    _frees.append((servers, free))
    if _busy.acquire(blocking=False):
        try:
            _drain()
        finally:
            _busy.release()


def _drain() -> None:
    while _frees:
        servers, free = _frees.popleft()
        if all(server.is_relayed for server in servers):
            free()
            for server in servers:
                server.freed += 1


def find_server(library: Library, endpoint: str) -> RpcServer:
    """The server at an address; it is connected at the first call."""
    with _lock:
        known = _servers.get(endpoint)
        if known is None or not known.is_relayed:
            _servers[endpoint] = RpcServer(library, endpoint)
        elif not known.is_free():
            known.check()
        return _servers[endpoint]


def parse_endpoints(value: Any) -> tuple[str, ...]:
    """The option `rpc`: addresses such as `127.0.0.1:50052`, separated by commas."""
    parts = value.split(",") if isinstance(value, str) else list(value)
    endpoints = tuple(part.strip() for part in parts if part.strip())
    for endpoint in endpoints:
        if not ENDPOINT.fullmatch(endpoint):
            raise ValueError(f"{endpoint!r} is not HOST:PORT")
    if len(set(endpoints)) < len(endpoints):
        raise ValueError("the same server twice")
    return endpoints


def procedure(library: Library, name: str) -> Ptr:
    """A function of ggml's RPC code; BackendUnavailableError if the library has none."""
    registry = library.lib.ggml_backend_reg_by_name(b"RPC")
    address = (
        NULL if registry == NULL else library.lib.ggml_backend_reg_get_proc_address(registry, name.encode())
    )
    if address == NULL:
        raise BackendUnavailableError(f"{library.path} has no RPC; rebuild it: {COMMAND}")
    return address


def _check_protocol(library: Library, endpoint: str, relay: str, protocol: str) -> None:
    """Greet a server from a child process first: over another version of the protocol, newer ggml ends the process."""
    if protocol in _protocols:
        return
    command = [sys.executable, "-m", "backbay_ggml.devices.rpc_greeting", relay]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=GREETING_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(f"the RPC server {endpoint} does not answer ggml's greeting") from None
    if "version mismatch" in done.stderr:
        raise BackendUnavailableError(
            f"the RPC server {endpoint} speaks version {protocol} of ggml's RPC, which ggml {library.version} of "
            f"{library.path} does not accept: run a server of the same version of ggml"
        )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it has no devices"]
        raise BackendUnavailableError(
            f"the RPC server {endpoint} cannot be used: {last[0]} (exit {done.returncode})"
        )
    _protocols.add(protocol)


def _start_relay(endpoint: str) -> tuple[subprocess.Popen[bytes], int, str]:
    """The relay process, its port, and the protocol version of the server. The relay ends with this process."""
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
