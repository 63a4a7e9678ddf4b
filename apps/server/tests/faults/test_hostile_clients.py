"""Hostile and unlucky surroundings: silent connections, full disks, files that vanish; and what logs must not tell."""

from __future__ import annotations

import resource
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import Served, serving
from scripted_model import write_scripted_model

SECRET = "mellon-open-the-door"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_scripted_model(tmp_path / "scripted.gguf")
    return tmp_path / "scripted.gguf"


def chat(server: Served, content: str = "[hello]", **fields: Any) -> httpx.Response:
    body = {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)


@pytest.mark.fault(
    "10,000 connections that send nothing", "others are served; the silent ones are closed after a while"
)
@pytest.mark.thorough
def test_thousands_of_silent_connections_stop_nobody(model: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(10_000, hard - 1000)
    with serving(model, "--backend", "cpu_ref") as server:
        host, port = server.url.removeprefix("http://").split(":")
        silent = []
        try:
            while len(silent) < count:
                silent.append(socket.create_connection((host, int(port)), timeout=300))
            answer = chat(server)
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"
        finally:
            for each in silent:
                each.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert chat(server).status_code == 200


@pytest.mark.fault("the disk is full where log lines go", "lines are lost, and requests are served")
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_disk_stops_no_request(form: str, model: Path) -> None:
    with (
        Path("/dev/full").open("w") as full,
        serving(model, "--backend", "cpu_ref", "--log", form, stderr=full) as server,
    ):
        with httpx.Client(base_url=server.url, timeout=300) as client:
            for _ in range(300):
                assert client.get("/v1/models").status_code == 200
        assert chat(server).status_code == 200


@pytest.mark.thorough
def test_nobody_who_reads_the_log_lines_stops_no_request(model: Path) -> None:
    with (
        serving(model, "--backend", "cpu_ref", "--log", "json") as server,  # its pipe is never read
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):
        for _ in range(800):  # 130 KB of lines
            assert client.get("/v1/models").status_code == 200
        client.close()
        server.process.terminate()
        assert server.process.wait(300) == 0


@pytest.mark.fault(
    "a model's file is deleted while it serves", "it goes on; after a restart, the model is unknown"
)
def test_a_deleted_file_ends_no_service(model: Path) -> None:
    with serving("--models", model.parent, "--backend", "cpu_ref") as server:
        assert chat(server).status_code == 200
        model.unlink()
        assert chat(server).status_code == 200
        names = httpx.get(f"{server.url}/v1/models", timeout=300).json()["data"]
        assert [each["id"] for each in names] == ["scripted"]
    with serving("--models", model.parent, "--backend", "cpu_ref") as server:
        refused = chat(server)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"


@pytest.mark.fault("a model's file is damaged", "500 for its requests; other models are served")
def test_a_damaged_file_is_an_error_of_its_requests(model: Path) -> None:
    (model.parent / "broken.gguf").write_bytes(b"GGUF" + bytes(100))
    with serving("--models", model.parent, "--backend", "cpu_ref") as server:
        broken = chat(server, model="broken")
        assert broken.status_code == 500
        assert str(model.parent) not in broken.text
        assert chat(server).status_code == 200


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_text_of_requests_is_in_logs_metrics_or_state(form: str, model: Path, tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w") as log,
        serving(model, "--backend", "cpu_ref", "--log", form, "--metrics", stderr=log) as server,
    ):
        assert chat(server, f"{SECRET} [hello]").status_code == 200
        assert chat(server, f"{SECRET} [faulty]").status_code == 500
        assert chat(server, SECRET, model=SECRET).status_code == 404
        assert chat(server, SECRET, temperature=SECRET).status_code == 400
        assert chat(server, SECRET * 10_000).status_code == 400
        httpx.get(f"{server.url}/no%0Athing?{SECRET}", headers={"x": SECRET}, timeout=300)
        shown = "".join(httpx.get(f"{server.url}/{page}", timeout=300).text for page in ("metrics", "state"))
    told = (tmp_path / "log").read_text()
    assert "LogitsError" in told
    assert "/v1/chat/completions" in told
    assert "/no%0Athing" in told  # whoever mends a client looks for it
    assert SECRET not in told
    assert SECRET not in shown
    assert 'vllm:num_requests_running{model_name="scripted"} 0.0' in shown
    assert 'backbay_refused_requests_total{status="404"} 2.0' in shown
