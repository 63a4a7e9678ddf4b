"""The examples of docs/server.md and of README do what they say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from scripted_model import Script, write_scripted_model
from serving import Served, serving

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "server.md").read_text()
README = (ROOT / "README.md").read_text()
TINY = ROOT / "examples" / "models" / "backbay-tiny-f16.gguf"
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CURL = re.findall(r"^curl .*$", PAGE, re.MULTILINE)
needs_openai = pytest.mark.skipif(find_spec("openai") is None, reason="needs openai")


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without keys, with one model, that greets."""
    path = tmp_path_factory.mktemp("models") / "model.gguf"
    with serving(write_scripted_model(path, {"greeting": Script(("Hi", " there"))})) as server:
        yield server


def here(text: str, server: Served) -> str:
    """An example that asks this server."""
    return text.replace("http://localhost:8080", server.url).replace("localhost:8080", server.url)


@needs_openai
def test_the_program_prints_an_answer(open_server: Served) -> None:
    [program] = PYTHON
    command = [sys.executable, "-W", "error", "-c", here(program, open_server)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (ended.stdout, ended.stderr) == ("Hi there", "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_gets_an_answer(open_server: Served) -> None:
    [line] = CURL
    command = ["curl", "-sS", *shlex.split(here(line, open_server), comments=True)[1:]]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert '"content":"Hi there"' in ended.stdout


@needs_openai
def test_the_program_of_the_readme_prints_what_it_says() -> None:
    [program] = re.findall(r"^```py\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    [said] = re.findall(r"print\(.*\)  # (.*)", program)
    with serving(TINY, context=64) as server:
        command = [sys.executable, "-W", "error", "-c", here(program, server)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.stdout.strip(), ended.stderr) == (said, "")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_line_of_the_readme_gets_an_answer() -> None:
    [line] = re.findall(r"^curl .*$", README, re.MULTILINE)
    with serving(TINY, context=64) as server:
        command = ["curl", "-sS", *shlex.split(here(line, server), comments=True)[1:]]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        assert '"text":" 685' in ended.stdout
