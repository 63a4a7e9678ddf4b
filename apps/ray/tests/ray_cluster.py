"""A Ray cluster of one machine, on loopback, for tests: started, deployed to, and disturbed as an operator would."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

BIN = Path(sys.executable).parent
STARTING = 900.0  # seconds; a busy machine takes long to import Ray
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore", "PYTHONUNBUFFERED": "1"}
PATIENCE = {  # a busy machine answers late, and its node is not dead for that
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_gcs_rpc_server_connect_timeout_s": "60",
    "RAY_py_gcs_connect_timeout_s": "120",
}
STARTS = 5  # `ray start` gives up when its parts take more than 30 s, which nothing can change


class Cluster:
    """The cluster, and its one application."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder, self._port = folder, port
        self.http = free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment = {**os.environ, **SETTINGS, **PATIENCE, **token, "RAY_ADDRESS": f"127.0.0.1:{port}"}

    def deploy(self, arguments: dict[str, Any], **overrides: Any) -> None:
        """Deploy the application, or change it; `overrides` are options of the deployment Engine-scripted."""
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": "127.0.0.1", "port": self.http},
            "applications": [
                {
                    "name": "backbay",
                    "route_prefix": "/",
                    "import_path": "backbay_ray:app",
                    "args": arguments,
                    "deployments": [{"name": "Engine-scripted", **overrides}],
                }
            ],
        }
        file = self._folder / "application.yaml"
        file.write_text(json.dumps(config))  # which is YAML, too
        words = [BIN / "serve", "run", "--non-blocking", file]
        subprocess.run(words, env=self.environment, check=True, timeout=STARTING)

    def replicas(self, deployment: str = "Engine-scripted") -> list[int]:
        """The processes of a deployment that have a name already: those that load, and those that serve."""
        beginning = f"ray::ServeReplica:backbay:{deployment}"
        return [pid for pid, title in self._workers() if title.startswith(beginning)]

    def kill(self, sig: signal.Signals = signal.SIGKILL, deployment: str = "Engine-scripted") -> int:
        """Send a signal to all replicas; how many there were."""
        found = self.replicas(deployment)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, sig)
        return len(found)

    def until_ready(self, replicas: int) -> None:
        """Wait until requests are answered, and this many replicas live."""
        until(lambda: len(self.replicas()) == replicas and self.is_ready())

    def is_ready(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/ready", timeout=5).status_code == 200
        return False

    def logs(self) -> str:
        """What the replicas logged."""
        files = self._folder.glob("session_2*/logs/serve/*.log")
        return "".join(file.read_text(errors="replace") for file in files)

    def ray_metrics(self) -> str:
        """What Ray tells Prometheus on this machine."""
        found = max(
            self._folder.glob("session_2*/metrics_export_port*"), key=lambda path: path.stat().st_mtime
        )
        port = re.sub(r"\D", "", found.read_text())
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=300).text

    def end(self) -> None:
        """Kill all processes of the cluster."""
        daemons = [pid for pid, _, title in processes() if str(self._folder) in title]
        for pid in [*daemons, *(pid for pid, _ in self._workers())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _workers(self) -> list[tuple[int, str]]:
        """The processes that the raylet of this cluster started, and their titles."""
        found = [*processes()]
        own = {pid for pid, _, title in found if "raylet" in title and str(self._folder) in title}
        return [(pid, title) for pid, parent, title in found if parent in own]


def processes() -> Iterator[tuple[int, int, str]]:
    """The processes of this machine: id, parent, command line or title."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(entry.name), parent, (entry / "cmdline").read_text(errors="replace")


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster with room for a few small replicas, ended with all its processes."""
    folder, port = Path(tempfile.mkdtemp(prefix="bb-")), free_port()  # a short path, for the names of sockets
    made = Cluster(folder, port)
    words = ["start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"]
    words += ["--num-cpus=8", "--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
    words += [f"--port={port}", f"--temp-dir={folder}"]
    ray = None
    try:
        ray = _started(made, words, folder / "ray.log")
        yield made
    finally:
        made.end()
        if ray is not None:
            ray.wait(300)
        shutil.rmtree(folder, ignore_errors=True)


def _started(made: Cluster, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """The process of `ray start`, once the cluster runs."""
    for _ in range(STARTS):
        with log.open("w") as file:
            ray = subprocess.Popen([BIN / "ray", *words], env=made.environment, stdout=file, stderr=file)
        until(lambda ray=ray: ray.poll() is not None or "Ray runtime started" in log.read_text())
        if ray.poll() is None:
            return ray
        made.end()
    raise AssertionError(log.read_text())


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + STARTING
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
