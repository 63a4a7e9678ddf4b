"""Connections to RPC servers, each through a relay: a server that dies or stops is an error, not the end of ours."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from backbay import BackendUnavailableError
from backbay.internals import close_after_fork, raise_if_starved, run_helper, run_if_free

from ..library.abi import NULL, Ptr, ffi
from ..library.library import Library
from ..library.location import REBUILD, VARIABLE
from .rpc_relay import RpcRelay

PATIENCE = 60.0  # seconds that a server may take for an answer, unless the option rpc_timeout says otherwise
MOST_SECONDS = 1e6  # the sockets of some systems take no more
CLOSE_SECONDS = 1.0  # for ggml to close a lost connection
GREETING_SECONDS = 60.0  # for a child process to start and to greet a server
ENDPOINT = re.compile(r"[\w.-]+:\d{1,5}")

NAMES = (
    "INT TERM HUP QUIT ALRM VTALRM PROF CHLD USR1 USR2 WINCH IO TSTP CONT"  # of signals that may be handled
)
SIGNALS = [getattr(signal, f"SIG{name}") for name in NAMES.split() if hasattr(signal, f"SIG{name}")]

_lock = threading.Lock()
_servers: dict[str, RpcServer] = {}  # by address
_protocols: set[str] = set()  # versions that the library is known to accept
_busy = threading.Lock()  # ggml's connections serve one thread at a time, and a compute may use several
_frees: deque[tuple[tuple[RpcServer, ...], Callable[[], None]]] = deque()


@final
class RpcServer:
    """A server, by its address. It is kept until the process ends, because ggml keeps it too."""

    def __init__(self, library: Library, endpoint: str, patience: float) -> None:
        self.endpoint = endpoint
        # How often memory was freed there: a server then forgets its graphs, but ggml does not send them again.
        self.freed = 0
        self._why_gone = ""
        add_server = rpc_function(library, "ggml_backend_rpc_add_server")
        self.relay = RpcRelay(endpoint, patience)
        try:
            _check_protocol(library, endpoint, self.relay)
            with session_lock(), rpc_session(self):
                registry = ffi.cast("ggml_backend_reg_t (*)(const char *)", add_server)(
                    f"127.0.0.1:{self.relay.port}".encode()
                )
            if registry == NULL:
                raise BackendUnavailableError(f"the RPC server {self.endpoint} has no devices")
        except BaseException:
            self.relay.close()
            raise
        close_after_fork(self)
        count = library.lib.ggml_backend_reg_dev_count(registry)
        self.devices = [library.lib.ggml_backend_reg_dev_get(registry, n) for n in range(count)]

    @property
    def is_relayed(self) -> bool:
        """Whether the relay's threads run; without them, calls of ggml would never return."""
        return not self._why_gone and not sys.is_finalizing()

    def after_fork(self, reason: str) -> None:
        """Become unusable: the relay's threads stayed behind in the parent."""
        global _busy, _lock
        self._why_gone = reason
        self.relay.after_fork()
        _busy, _lock = threading.Lock(), threading.Lock()

    def check(self, *, meanwhile: bool = False) -> None:
        """BackendUnavailableError if the server is gone; with `meanwhile`, also if it was lost since the session began."""
        if not self.is_relayed:
            why = self._why_gone or ": this process ends"
            raise BackendUnavailableError(f"the RPC server {self.endpoint} cannot be reached{why}")
        reasons = [*self.relay.lost.values(), *(self.relay.losses if meanwhile else [])]
        if reasons:
            raise BackendUnavailableError(f"the RPC server {self.endpoint} is gone: {reasons[0]}")


def session_lock() -> threading.Lock:
    """The lock of all sessions, to be held around each: `with turn(), session(...)`; see `backbay.trace.recording` for why."""
    return _busy


@contextmanager
def rpc_session(*servers: RpcServer) -> Iterator[None]:
    """Must surround every call that reaches servers; BackendUnavailableError if one is gone, before or after."""
    if not _busy.locked():
        raise AssertionError("a session is held without the turn of its thread")
    with _without_signals():
        for server in servers:
            server.relay.losses = []  # of earlier sessions
            server.check()
        try:
            yield
        finally:
            _drain()
            for server in servers:
                server.check(meanwhile=True)


@contextmanager
def _without_signals() -> Iterator[None]:
    """Let other threads take signals: ggml ends its process if one interrupts it while it waits for a server."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield  # the system gives signals to the main thread first
        return
    found = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, found)


def free_server_memory(servers: tuple[RpcServer, ...], free: Callable[[], None]) -> None:
    """Free memory on servers, now or at the end of the running session; it may be called at any time."""
    _frees.append((servers, free))
    run_if_free(_busy, _drain_without_signals)


def _drain_without_signals() -> None:
    with _without_signals():
        _drain()


def _drain() -> None:
    while _frees:
        servers, free = _frees.popleft()
        if all(server.is_relayed for server in servers):
            free()
            for server in servers:
                server.freed += 1


def find_server(library: Library, endpoint: str, patience: float = PATIENCE) -> RpcServer:
    """The server at an address; it is connected at the first call. The patience of the last call counts for all."""
    with _lock:
        known = _servers.get(endpoint)
        if known is None or not known.is_relayed:
            _servers[endpoint] = RpcServer(library, endpoint, patience)
        else:
            known.relay.patience = patience
            deadline = time.monotonic() + CLOSE_SECONDS
            while known.relay.lost and time.monotonic() < deadline:
                time.sleep(0.01)
            known.check()  # with no lost connection open any more, the server may be tried again
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


def parse_timeout(value: Any) -> float:
    seconds = float(value)
    if not 0 < seconds <= MOST_SECONDS:
        raise ValueError(f"{value!r} is not in (0, {MOST_SECONDS:g}] seconds")
    return seconds


def rpc_function(library: Library, name: str) -> Ptr:
    """A function of ggml's RPC code; BackendUnavailableError if the library has none."""
    registry = library.lib.ggml_backend_reg_by_name(b"RPC")
    address = (
        NULL if registry == NULL else library.lib.ggml_backend_reg_get_proc_address(registry, name.encode())
    )
    if address == NULL:
        raise BackendUnavailableError(f"{library.path} has no RPC; rebuild it: {REBUILD}")
    return address


def _check_protocol(library: Library, endpoint: str, relay: RpcRelay) -> None:
    """Greet a server from a child process first: over another version of the protocol, newer ggml ends the process."""
    if relay.protocol in _protocols:
        return
    command = [sys.executable, "-m", "backbay_ggml.devices.rpc_greeting", f"127.0.0.1:{relay.port}"]
    environment = {**os.environ, VARIABLE: str(library.path), "GGML_NO_BACKTRACE": "1"}
    try:
        done = run_helper(command, env=environment, timeout=GREETING_SECONDS)
    except subprocess.TimeoutExpired:
        raise BackendUnavailableError(f"the RPC server {endpoint} does not answer ggml's greeting") from None
    except OSError as error:
        raise_if_starved(error, f"greeting the RPC server {endpoint}")
        raise BackendUnavailableError(f"no process can greet the RPC server {endpoint}: {error}") from error
    if "version mismatch" in done.stderr:
        raise BackendUnavailableError(
            f"the RPC server {endpoint} speaks version {relay.protocol} of ggml's RPC, which ggml {library.version} of "
            f"{library.path} does not accept: run a server of the same version of ggml"
        )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["it has no devices"]
        raise BackendUnavailableError(
            f"the RPC server {endpoint} cannot be used: {last[0]} (exit {done.returncode})"
        )
    _protocols.add(relay.protocol)
