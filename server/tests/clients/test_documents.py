"""The examples of docs/server.md do what they say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripted_model import Script, write_scripted_model
from serving import Served, serving

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "server.md").read_text()
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CURL = re.findall(r"^curl .*$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without keys, with one model, that greets."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    with serving(write_scripted_model(path, {"greeting": Script(("Hi", " there"))})) as server:
        yield server


def here(text: str, server: Served) -> str:
    """An example that asks this server."""
    return text.replace("http://localhost:8080", server.url).replace("localhost:8080", server.url)


def test_the_program_prints_an_answer(open_server: Served) -> None:
    [program] = PYTHON
    command = [sys.executable, "-W", "error", "-c", here(program, open_server)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.stdout, ended.stderr) == ("Hi there", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_gets_an_answer(open_server: Served) -> None:
    [line] = CURL
    command = ["curl", "-sS", *shlex.split(here(line, open_server))[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert '"content":"Hi there"' in ended.stdout
