"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from patience import PATIENCE, wait_until
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--use-fake-device-for-media-stream",  # a microphone that beeps
    "--use-fake-ui-for-media-stream",  # which every page may use
)


def chromium() -> str | None:
    """The program, as BACKBAY_CHROMIUM or the path names it; None if there is none."""
    return os.environ.get("BACKBAY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab, and what went wrong in it."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.faults: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            told = json.loads(self._socket.recv(timeout=300))
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self._note(told)

    def _note(self, told: Any) -> None:
        method, params = told.get("method"), told.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.faults.append(params["exceptionDetails"]["exception"].get("description", "exception"))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.faults.append(params["entry"]["text"])

    def go(self, url: str) -> None:
        told = self.call("Page.navigate", url=url)
        assert "errorText" not in told, told
        here = f"location.href === new URL({json.dumps(url)}).href"  # the answer may come before the new document
        self.until(f"{here} && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < end, f"never: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def write(self, text: str, *, enter: bool = False) -> None:
        """Type into the focused element."""
        self.call("Input.insertText", text=text)
        if enter:
            self.press("Enter")

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Escape": 27}
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **more)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    @contextmanager
    def another_tab(self) -> Iterator[Page]:
        """A further tab of the same window, which shares what the browser keeps."""
        tab = self.call("Target.createTarget", url="about:blank")["targetId"]
        host, port = self._socket.remote_address[:2]
        with connect(
            f"ws://{host}:{port}/devtools/page/{tab}", max_size=1 << 26, ping_interval=None
        ) as socket:
            yield Page(socket)
        self.call("Target.closeTarget", targetId=tab)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a browser of its own; without one, the test is skipped."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium: name one in BACKBAY_CHROMIUM")
    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        told = folder / "DevToolsActivePort"
        wait_until(lambda: told.exists() and told.read_text().count("\n"))
        port = told.read_text().split()[0]
        with urlopen(f"http://127.0.0.1:{port}/json", timeout=300) as answer:
            tab = next(each for each in json.load(answer) if each["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=1 << 26, ping_interval=None) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        process.wait(300)
