"""A server of scripted models, and its page in a headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Page, browser
from chat_page import MARKDOWN, opened
from processes import Served, serving
from scripted_model import CONTEXT, SCRIPTS, says, write_scripted_model

SPOKEN = {
    "markdown": says(*(MARKDOWN[at : at + 7] for at in range(0, len(MARKDOWN), 7))),
    "hostile": says(
        "<img src=x ",
        "onerror=attack()>",
        "\n\n[x](java",
        "script:attack())",
        " ![p](http://evil",
        ".test/p.png)",
    ),
}
OTHER = {
    "hello": says("Hello", ",", {" moon": 0.6, " world": 0.4}, "!"),
    "count": says(" 1", " 2"),
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One file on two backends, and another file that says other things."""
    folder = tmp_path_factory.mktemp("models")
    scripts = {**SCRIPTS, **SPOKEN}
    first = write_scripted_model(folder / "scripted.gguf", scripts)
    second = write_scripted_model(folder / "other.gguf", {**scripts, **OTHER})
    with serving(first, second, "--backend", "cpu_ref", "--backend", "onnx", "--context", CONTEXT) as found:
        yield found


@pytest.fixture(scope="module")  # no browser stands idle while others' tests run
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(shared: Page, server: Served) -> Iterator[Page]:
    opened(shared, server.url)
    yield shared
    assert not shared.faults
