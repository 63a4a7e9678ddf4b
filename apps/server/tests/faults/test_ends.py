"""How the server ends: drained by SIGTERM, at once by a second one, killed, and started again."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import httpx
import msgspec
import pytest
from patience import PATIENCE
from processes import Served, serving
from scripted_model import CONTEXT, write_scripted_model
from starlette.types import Receive, Scope, Send
from worker_processes import is_gone

from backbay_server.transport.request_checks import RequestDrain
from backbay_server.transport.server import Server, bind_socket


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_scripted_model(tmp_path / "scripted.gguf")
    return tmp_path / "scripted.gguf"


def body(script: str, **fields: object) -> dict[str, object]:
    return {
        "model": "scripted",
        "messages": [{"role": "user", "content": f"[{script}]"}],
        "stream": True,
        **fields,
    }


def ended(server: Served) -> int:
    return server.process.wait(300)


def children(process: int) -> list[int]:
    """The processes that the threads of a process have started."""
    found = list[int]()
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


def workers_of(process: int) -> list[int]:
    """The workers among them that run."""
    program = b"backbay_engine.worker.program"
    found = list[int]()
    for child in children(process):
        with suppress(OSError):  # it has ended
            found += [child] if program in Path(f"/proc/{child}/cmdline").read_bytes() else []
    return found


def until_draining(server: Served) -> None:
    """Wait until the signal has been heard."""
    with httpx.Client(base_url=server.url, timeout=300) as client:
        while client.get("/ready").status_code == 200:
            time.sleep(0.02)


@contextmanager
def unfinished(server: Served) -> Iterator[socket.socket]:
    """The connection of a request without its last byte, so that the server has something to do."""
    host, port = server.url.removeprefix("http://").split(":")
    content = msgspec.json.encode(body("hello", stream=False))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=300) as connection:
        connection.sendall(head.encode() + content[:-1])
        yield connection


def streaming(lines: Iterator[str], count: int = 3) -> None:
    """Read until an answer has begun."""
    for _ in range(count):
        next(lines)


@pytest.mark.fault(
    "SIGTERM in mid-stream",
    "/ready and new requests get 503, running answers end whole, then the process ends",
)
def test_sigterm_lets_running_answers_end(model: Path) -> None:
    with (
        serving(model, "--backend", "cpu_ref", "--context", 4096, "--drain", 600) as server,
        unfinished(server) as unsent,
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):
        with client.stream("POST", "/v1/chat/completions", json=body("endless", max_tokens=1000)) as answer:
            lines = answer.iter_lines()
            streaming(lines)
            server.process.send_signal(signal.SIGTERM)
            until_draining(server)
            with httpx.Client(base_url=server.url, timeout=300) as other:
                refused = other.post("/v1/chat/completions", json=body("hello"))
                assert refused.status_code == 503
                assert refused.headers["retry-after"]
                assert other.get("/ready").status_code == 503
                assert other.get("/health").status_code == 200
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2] + rest[-3]
        assert server.process.poll() is None
        unsent.sendall(b"}")
        assert unsent.recv(100).startswith(b"HTTP/1.1 200 ")
        assert ended(server) == 0


@pytest.mark.fault(
    "running answers outlast the time for the end (--drain)",
    "they end with an error event, and the process ends",
)
def test_answers_that_take_too_long_are_cancelled(model: Path) -> None:
    with serving(model, "--backend", "cpu_ref", "--context", CONTEXT, "--drain", 0.2) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body("endless"), timeout=300
        ) as answer:
            lines = answer.iter_lines()
            streaming(lines)
            server.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert "error" in msgspec.json.decode(rest[-1].removeprefix("data: "))
        assert ended(server) == 0


def test_a_second_signal_ends_at_once(model: Path) -> None:
    with (
        serving(model, "--backend", "cpu_ref", "--context", CONTEXT, "--drain", 600) as server,
        httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body("endless"), timeout=300
        ) as answer,
    ):
        lines = answer.iter_lines()  # held, or the answer would be closed
        streaming(lines)
        server.process.send_signal(signal.SIGTERM)
        until_draining(server)  # two signals that wait are one
        server.process.send_signal(signal.SIGTERM)
        assert ended(server) == 128 + signal.SIGTERM


@pytest.mark.fault("SIGTERM while the models load", "the server ends once they are loaded")
def test_a_signal_during_the_start_is_not_lost() -> None:
    received: list[str] = []

    async def lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            event = (await receive())["type"]
            received.append(event)
            if event == "lifespan.startup":
                server.handle_exit(signal.SIGTERM, None)
            await send({"type": f"{event}.complete"})

    async def cancel() -> None: ...

    server = Server(lifespan, RequestDrain(), drain_seconds=0, cancel=cancel, listening=lambda: None)
    with bind_socket("127.0.0.1", 0) as port:
        thread = Thread(target=server.run, args=[[port]], daemon=True)
        thread.start()
        thread.join(PATIENCE)
    assert received == ["lifespan.startup", "lifespan.shutdown"]


def test_an_idle_server_waits_for_nothing(model: Path) -> None:
    with (
        serving(model, "--backend", "cpu_ref") as server,
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):
        client.get("/health")  # an idle connection stays
        server.process.send_signal(signal.SIGINT)
        assert ended(server) == 0
        assert server.process.stderr is not None
        assert "timeout" not in server.process.stderr.read()


@pytest.mark.fault(
    "the server is killed in mid-stream (-9)",
    "the client's connection ends; started again, it serves at the same port",
)
def test_killed_and_started_again(model: Path) -> None:
    with serving(model, "--backend", "cpu_ref", "--context", CONTEXT) as server:
        port = server.url.rpartition(":")[2]
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body("endless"), timeout=300
        ) as answer:
            lines = answer.iter_lines()
            streaming(lines)
            server.process.kill()
            with pytest.raises(httpx.HTTPError):
                list(lines)
    with serving(model, "--backend", "cpu_ref", "--port", port) as again:
        answer = httpx.post(f"{again.url}/v1/chat/completions", json=body("hello", stream=False), timeout=300)
        assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"


@pytest.mark.fault(
    "a model's process dies in mid-stream (--worker)",
    "the stream goes on after a pause; after the third death an error event, and the next request is served",
)
def test_a_dying_worker_costs_no_answer_unless_it_dies_again_and_again(model: Path) -> None:
    with serving(model, "--backend", "cpu_ref", "--worker", "--context", CONTEXT) as server:
        with httpx.stream(
            "POST", f"{server.url}/v1/chat/completions", json=body("endless"), timeout=300
        ) as answer:
            heard = Heard(answer)
            heard.wait_for(3)
            deaths = kill_worker(server, heard)
            while not workers_of(server.process.pid):
                time.sleep(0.01)
            heard.wait_for(len(heard.lines) + 50)
            while not heard.over.is_set():
                deaths += kill_worker(server, heard)
                # A worker that dies after it is ready, and before it begins, costs no retry.
                assert deaths <= 6
            assert deaths >= 3
            assert "error" in msgspec.json.decode(heard.lines[-1].removeprefix("data: "))
        found = httpx.post(f"{server.url}/v1/chat/completions", json=body("hello", stream=False), timeout=300)
        assert found.status_code == 200


class Heard:
    """The lines of an answer, which a thread reads."""

    def __init__(self, answer: httpx.Response) -> None:
        self.lines, self.over = list[str](), Event()
        self._answer = answer
        Thread(target=self._read, daemon=True).start()  # it ends with the answer

    def wait_for(self, count: int) -> None:
        while len(self.lines) < count:
            assert not self.over.is_set(), self.lines[-1:]
            time.sleep(0.01)

    def _read(self) -> None:
        try:
            for line in self._answer.iter_lines():
                if line:
                    self.lines.append(line)
        finally:
            self.over.set()


def kill_worker(server: Served, heard: Heard) -> int:
    """Kill the worker, or wait until the answer is over; how many were killed."""
    while not (workers := workers_of(server.process.pid)):
        if heard.over.wait(0.01):
            return 0
    for child in workers:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    while workers_of(server.process.pid) == workers:
        time.sleep(0.01)
    return 1


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_server(sig: signal.Signals, model: Path) -> None:
    with serving(model, "--backend", "cpu_ref", "--worker") as server:
        answer = httpx.post(
            f"{server.url}/v1/chat/completions", json=body("hello", stream=False), timeout=300
        )
        assert answer.status_code == 200
        workers = workers_of(server.process.pid)
        assert workers
        server.process.send_signal(sig)
        ended(server)
    assert all(is_gone(worker) for worker in workers)
