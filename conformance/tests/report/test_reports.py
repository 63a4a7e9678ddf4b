"""Reports, badges and pages are what browsers and CI servers can read."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from backbay_conformance import Outcome, Report
from backbay_conformance.report.certificate import badge, certificate, certify, refusals
from backbay_conformance.report.html import page
from backbay_conformance.report.junit import junit
from backbay_conformance.report.terminal import matrix

VOID = {"meta", "br", "rect", "line"}


class Balanced(HTMLParser):
    """Refuses a page whose tags do not close."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def report(*, failed: bool, size: str = "default") -> Report:
    made = Report("some_backend", 7, size, ("core",), {"devices": ["CPU:0 <fast>"]})
    made.add(
        Outcome("core/add/0", dtype="f32", level="kernel", ratio=0.4, call="add(f32[2])", checks=["result"])
    )
    made.add(Outcome("core/exp/0", dtype="f16", level="composite", ratio=0.9, call="exp(f16[2])"))
    made.add(Outcome("core/sin/0", "unsupported", dtype="f32", call="sin(f32[2])"))
    if failed:
        wrong = "at (0,) expected <1>, got 2 & \x1b"
        made.add(
            Outcome(
                "core/cos/0",
                "failed",
                "f32",
                check="bound",
                message=wrong,
                script="print(1 < 2)",
                choices=[1],
            )
        )
    return made


@pytest.mark.parametrize("failed", [True, False])
def test_the_page_is_well_formed_and_complete(failed: bool) -> None:
    text = page(report(failed=failed))
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    shown = "".join(parser.text)
    assert ("does not keep the contract" in shown) is failed
    assert "some_backend" in shown
    assert "http" not in text.replace("http-equiv", "")


def test_junit_is_xml_that_counts_failures() -> None:
    suite = ET.fromstring(junit(report(failed=True)))
    assert suite.attrib["failures"] == "1"
    assert len(suite.findall("testcase")) == 4
    assert len(suite.findall("testcase/skipped")) == 1


def test_each_state_has_its_mark_in_the_matrix() -> None:
    lines = "\n".join(matrix(report(failed=True), colour=False))
    for name, letter in (("add", "ok"), ("exp", "co"), ("cos", "XX")):
        row = next(line for line in lines.splitlines() if line.startswith(f"core {name} "))
        assert letter in row.split()[2:]
    assert "\nunsupported: sin\n" in lines


def test_certificates_need_a_clean_run() -> None:
    assert refusals(report(failed=False)) == []
    assert refusals(report(failed=True)) == ["1 calls failed"]
    assert refusals(report(failed=False, size="smoke")) == [
        "size smoke is too small; take default or nightly"
    ]
    assert "nothing passed" in refusals(Report("none", 0, "default", ("core",)))


def test_a_certificate_says_what_was_proved(tmp_path: Path) -> None:
    clean = report(failed=False)
    said = certificate(clean, {})
    assert said["counts"] == {"passed": 2, "failed": 0, "known": 0, "unsupported": 1}
    assert {op["name"]: op["state"] for op in said["ops"]} == {
        "add": "full",
        "exp": "composite",
        "sin": "unsupported",
    }
    assert [path.suffix for path in certify(clean, tmp_path, {})] == [".json", ".html", ".svg"]


def test_the_badge_is_svg_that_names_the_suite() -> None:
    root = ET.fromstring(badge(report(failed=False)))
    assert root.tag.endswith("svg")
    assert "conforms" in root.attrib["aria-label"]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no browser here")
def test_a_browser_renders_the_page(tmp_path: Path) -> None:
    file, picture = tmp_path / "report.html", tmp_path / "page.png"
    file.write_text(page(report(failed=True)))
    words = [
        "chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--screenshot={picture}",
        file.as_uri(),
    ]
    subprocess.run(words, check=True, capture_output=True, timeout=300)
    assert picture.stat().st_size > 5000
