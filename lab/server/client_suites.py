"""Runs clients' own test suites against this server, and prints the table of lab/server/clients.md.

python lab/server/client_suites.py langchain
python lab/server/client_suites.py openai FOLDER       FOLDER: a checkout of openai-python
python lab/server/client_suites.py anthropic FOLDER    of anthropic-sdk-python
python lab/server/client_suites.py llama.cpp FOLDER    of llama.cpp

Further words go to pytest. The server has a scripted model: it answers "ok", calls the tools that a request demands, and
ends what it has to write as soon as a format allows. llama.cpp's tests start servers of their own: see llama_server.py.
Beside what a checkout's own tests need, pytest-asyncio and what langchain_suites.py names.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import requests

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "apps" / name) for name in ("server/tests", "engine/tests/inputs")]
COMMON = "-q", "-p", "no:cacheprovider", "-o", "addopts="
OPENAI = (
    "test_models.py",
    "test_completions.py",
    "test_embeddings.py",
    "test_responses.py",
    "chat/test_completions.py",
    "responses/test_input_tokens.py",
    "responses/test_input_items.py",
)
ANTHROPIC = "test_models.py", "test_messages.py", "beta/test_models.py", "beta/test_messages.py"
OPENAI_MODELS = "gpt-5.4", "gpt-5.1", "gpt-5.6-sol", "gpt-4o-mini", "gpt-3.5-turbo-instruct", "model"


class Outcomes:
    """A plugin of pytest: counts outcomes by suite, and keeps the failures."""

    def __init__(self, *, by_class: bool = False) -> None:
        self.by_class = by_class
        self.counts: dict[str, Counter[str]] = {}
        self.failures: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        file, *inner = report.nodeid.split("::")
        suite = inner[0].removeprefix("Test") if self.by_class else file.partition("tests/")[2] or file
        outcome = "expected" if hasattr(report, "wasxfail") else report.outcome
        self.counts.setdefault(suite, Counter())[outcome] += 1
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(report.longrepr) if crash is None else crash.message
            self.failures.append((f"{suite}, {inner[-1]}", message.replace("\n", " ")[:300]))

    def lines(self) -> Iterator[str]:
        """The table, each failure, and how often each reason occurs."""
        yield from ("| suite | passed | failed | skipped |", "|---|---|---|---|")
        for suite, found in self.counts.items():
            left_out = found["skipped"] + found["expected"]
            yield f"| {suite} | {found['passed']} | {found['failed']} | {left_out} |"
        yield from ("", *(f"{test}: {message}" for test, message in self.failures), "")
        reasons = Counter(re.sub(r"[0-9a-f]{16,}|\d+", "N", message) for _, message in self.failures)
        yield from (f"{count} x {reason}" for reason, count in reasons.most_common())


class LlamaTests:
    """A plugin of pytest for llama.cpp's tests: files and pictures are ours, and texts of its own models not expected."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def pytest_collectstart(self) -> None:
        utils: Any = sys.modules.get("utils")  # once their conftest has imported it
        if utils is not None:
            utils.match_regex = lambda *_: True
            utils.ServerPreset.load_all = staticmethod(lambda: None)
            utils.download_file = self.server.file_of
            requests.get = self.get
            utils.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": self.server})

    def get(self, url: str, **options: Any) -> Any:
        if not url.startswith("https://huggingface.co/"):
            return requests.request("GET", url, **options)
        from llama_server import PICTURE

        return SimpleNamespace(
            content=(self.server.models / PICTURE).read_bytes(), raise_for_status=lambda: None
        )


def run_langchain(outcomes: Outcomes, more: list[str]) -> None:
    outcomes.by_class = True
    with serving_scripted() as url:
        os.environ["BACKBAY_SUITE_ADDRESS"] = url
        options = ["-c", os.devnull, "--rootdir", str(HERE), "-o", "asyncio_mode=auto"]
        options += ["-o", "asyncio_default_test_loop_scope=session"]  # LangChain keeps connections
        pytest.main([*COMMON, *options, str(HERE / "langchain_suites.py"), *more], plugins=[outcomes])


def run_openai(outcomes: Outcomes, folder: Path, more: list[str]) -> None:
    names = [f"{name}=scripted" for name in OPENAI_MODELS]
    with serving_scripted(*names, "text-embedding-3-small=vectors") as url:
        run_sdk(outcomes, folder, f"{url}/v1", OPENAI, more)


def run_anthropic(outcomes: Outcomes, folder: Path, more: list[str]) -> None:
    source = (
        folder / "src/anthropic/resources/messages/messages.py"
    ).read_text()  # imported by pytest, not here
    deprecated = source[source.index("DEPRECATED_MODELS = {") :].partition("}")[0]
    names = {"model_id", "claude-opus-4-6", *re.findall(r'"(claude-[^"]+)":', deprecated)}
    with serving_scripted(*(f"{name}=scripted" for name in sorted(names))) as url:
        run_sdk(outcomes, folder, url, ANTHROPIC, more)


def run_sdk(outcomes: Outcomes, folder: Path, url: str, files: tuple[str, ...], more: list[str]) -> None:
    """Tests that expect a mock of the service: any answer of the right types will do."""
    os.environ["TEST_API_BASE_URL"] = url
    sys.path.insert(0, str(folder / "src"))
    with chdir(folder):
        tests = [f"tests/api_resources/{file}" for file in files]
        pytest.main([*COMMON, *tests, *more], plugins=[outcomes])


def run_llama_cpp(outcomes: Outcomes, folder: Path, more: list[str]) -> None:
    from llama_server import LlamaServer, write_models

    with tempfile.TemporaryDirectory() as models, socket.create_server(("127.0.0.1", 0)) as free:
        LlamaServer.models = Path(models)
        write_models(LlamaServer.models)
        os.environ["PORT"] = str(free.getsockname()[1])
        free.close()
        with chdir(folder / "tools" / "server" / "tests"):
            Path("tmp").mkdir(exist_ok=True)  # llama-server's own, where some tests write options
            tests = [] if any("unit" in word for word in more) else ["unit"]
            pytest.main([*COMMON, *tests, *more], plugins=[outcomes, LlamaTests(LlamaServer)])


@contextmanager
def serving_scripted(*aliases: str) -> Iterator[str]:
    """The address of a server of two models, with these aliases."""
    from processes import serving
    from scripted_model import SCRIPTS, says, write_embedder, write_scripted_model

    # where a format takes the model out of its script, it ends what it has begun
    closing = says({'"': 0.4, "}": 0.3, "3": 0.2, "]": 0.1}, loops=True)
    with tempfile.TemporaryDirectory() as folder:
        path, axes = Path(folder), np.eye(8, dtype=np.float32)
        write_scripted_model(path / "scripted.gguf", {"closing": closing, **SCRIPTS})
        write_embedder(path / "vectors.gguf", {"north": axes[0], "east": axes[1]})
        models = path / "scripted.gguf", path / "vectors.gguf"
        named = [word for alias in aliases for word in ("--alias", alias)]
        with serving(*models, "--backend", "cpu_ref", "--max-loaded", "2", *named) as server:
            yield server.url


SUITES = {"openai": run_openai, "anthropic": run_anthropic, "llama.cpp": run_llama_cpp}


def main(words: list[str]) -> int:
    outcomes = Outcomes()
    match words:
        case ["langchain", *more]:
            run_langchain(outcomes, more)
        case [name, folder, *more] if name in SUITES:
            SUITES[name](outcomes, Path(folder).resolve(), more)
        case _:
            print(__doc__)
            return 2
    print("\n".join(outcomes.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
