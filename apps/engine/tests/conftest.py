"""A small model in each place where models run; a test module says by SIZES how it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_llama import write_small_llama

import backbay
from backbay_engine import LLM, load


@pytest.fixture(autouse=True)
def handlers_of_logging() -> Iterator[None]:
    """A command in this process sets up logging, for the streams of its test."""
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the small model."""
    return write_small_llama(tmp_path_factory.mktemp("models") / "small.gguf")


@pytest.fixture(scope="module", params=[*sorted(backbay.backends()), "worker"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    """The small model on each backend, and in a worker."""
    worker = request.param == "worker"
    backend = "cpu_ref" if worker else request.param
    with load(path, backend, **request.module.SIZES, worker=worker) as opened:
        yield opened
