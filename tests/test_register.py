"""The register: its entries hold what they say, and its pages answer questions, by mouse, by keyboard and in words."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from browser import Page, browser
from doc_blocks import ROOT

from backbay_register.adding import earned_level
from backbay_register.check import check, is_current
from backbay_register.entry import BADGE, CERTIFICATE, ENTRY, Entry, file_digests, read_record
from backbay_register.levels import badge

FOLDERS = sorted(path.parent for path in (ROOT / "register").glob(f"*/*/{ENTRY}"))
NAMES = ["/".join(folder.parts[-2:]) for folder in FOLDERS]
VIEWS = ("ops", "engines", "pair", "errors", "speed", "refused", "versions", "faults")


def script(room: str, name: str) -> ModuleType:
    """A script in lab as a module."""
    sys.path.insert(0, str(ROOT / "lab" / room))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "register"
    script("register", "register_site").build(folder)
    return folder


@pytest.fixture(scope="module")
def tab(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(tab: Page, folder: Path) -> Iterator[Page]:
    """The page as it opens."""
    tab.size(1400, 900)
    tab.go("about:blank")
    tab.go((folder / "index.html").as_uri())
    yield tab
    assert tab.faults == []


def look(page: Page, text: str) -> str:
    """The page's answer to a search."""
    page.value("document.getElementById('query').focus()")
    page.value("document.getElementById('query').select()")
    page.write(text)
    page.until(f"query.value === {json.dumps(text)} && place()[2] === query.value")
    return page.text("#answer")


def test_the_readme_lists_all_entries():
    table = script("register", "register_table").table()
    assert table in (ROOT / "register" / "README.md").read_text(), "run `make docs`"


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_an_entry_has_the_files_and_the_level_that_it_names(folder: Path):
    entry, said = Entry.read(folder), read_record(folder / CERTIFICATE)
    assert entry.files == file_digests(folder)
    assert entry.level == earned_level(folder, said)
    assert (folder / BADGE).read_text() == badge(entry.level, said["suite"])
    assert (entry.engine, entry.version) == folder.parts[-2:]
    assert entry.device
    assert entry.command.startswith("backbay conform ")
    assert not re.search(r"/(work|root|home|tmp)/", (folder / ENTRY).read_text())


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
@pytest.mark.thorough
def test_an_entry_is_accepted_or_of_an_older_suite(folder: Path):
    found = check(folder, sample=0)
    if is_current(found.said):
        assert found.reasons == []
    else:
        assert any(reason.startswith("suite: ") for reason in found.reasons)


@pytest.mark.parametrize(
    ("plugin", "engine"), [("cpu_ref", "cpu_ref"), ("ggml", "ggml"), ("onnx", "onnxruntime")]
)
def test_the_proof_of_a_plugin_of_ours_is_the_newest_entry_of_its_engine(plugin: str, engine: str):
    proof = (ROOT / "plugins" / plugin / "proof" / f"{plugin}-certificate.json").read_bytes()
    entries = [folder / CERTIFICATE for folder in FOLDERS if folder.parent.name == engine]
    assert proof in [path.read_bytes() for path in entries], (
        "run `backbay register add`, as `make certificates` does"
    )


def test_each_figure_leads_to_the_files_of_its_entry(folder: Path):
    data = json.loads((folder / "data.js").read_text().removeprefix("const REGISTER = ").rstrip(";\n"))
    assert {each["id"] for each in data["entries"]} == set(NAMES)
    for entry in data["entries"]:
        assert {CERTIFICATE, ENTRY} <= set(entry["files"])
        for name in entry["files"]:
            copied = folder / "entries" / entry["folder"] / name
            assert copied.read_bytes() == (ROOT / "register" / entry["folder"] / name).read_bytes()
    assert len(data["faults"]) == len(list((ROOT / "lab" / "found").glob("*.py")))


def test_the_pages_load_nothing_from_elsewhere(folder: Path):
    for path in folder.glob("*.*"):
        if path.name != "data.js":
            assert not re.search(r"(src|href)=\"(https?:)?//|@import|url\(", path.read_text()), path.name


def test_each_view_draws_and_fits_a_telephone(page: Page):
    for view in VIEWS:
        page.value(f"location.hash = {json.dumps(view)}")
        page.until(f"document.querySelector('#tab-{view}').ariaCurrent === 'page'")
        assert page.text("main"), view
        for width in (1400, 390):
            page.size(width, 800)
            assert page.value("document.documentElement.scrollWidth") <= width, (view, width)


def test_does_an_engine_compute_an_op_right(page: Page):
    told = look(page, "does onnxruntime compute f16 softmax right?")
    assert re.search(r"ONNX Runtime [\d.]+, f16: Yes; \d+ calls right, the worst at 0\.\d+", told)
    assert page.value("document.querySelectorAll('main .sub').length") >= 3


def test_a_search_is_a_link(page: Page):
    told = look(page, "softmax fp16")
    assert "f16: Yes" in told and "ends the process" in told.split("ggml")[1]  # what its plugin goes round
    page.value("location.hash = 'versions'")
    page.until("query.value === '' && place()[0] === 'versions'")
    assert look(page, "softmax float16") == told  # in the view that shows ops
    page.value("history.back()")
    page.until("query.value === '' && place()[0] === 'versions'")
    page.value("document.querySelector('.tries a').click()")
    page.until("query.value === 'softmax f16'")
    assert page.text("#answer") == told
    page.value("location.hash = 'q=subnormals'")
    page.until("query.value === 'subnormals' && place()[0] === 'engines'")


def test_which_engines_flush_subnormals(page: Page):
    told = look(page, "which engines flush subnormals?")
    assert re.search(r"JAX .* declares to flush them in \d+ ops", told)
    assert "ggml" in told.split("No flushing declared")[1]
    assert page.value("place()[0]") == "engines"
    assert page.value("document.querySelectorAll('main article').length") == len(FOLDERS)


def test_what_is_new_wrong_in_a_version(page: Page):
    look(page, "what is new wrong in onnxruntime 1.29?")
    page.until("place()[0] === 'versions'")
    assert "new wrong: 1" in page.text("main")
    assert "forked child" in page.text("main")


@pytest.fixture
def newer(tmp_path: Path) -> Path:
    """A register in which the next version of an engine computes softmax wrong in f16, and add faster."""
    old = [each for each in FOLDERS if each.parent.name == "onnxruntime"][-1]
    register = tmp_path / "register"
    shutil.copytree(old, register / "onnxruntime" / old.name)
    new = Path(shutil.copytree(old, register / "onnxruntime" / "99.0"))
    said = json.loads((new / CERTIFICATE).read_text())
    line = next(each for each in said["ops"] if (each["name"], each["dtype"]) == ("softmax", "f16"))
    line |= {"state": "failing", "failed": 3, "passed": line["passed"] - 3}
    for speed in said["speeds"]:
        speed["times"] *= 2 if speed["op"] == "add" else 1
    (new / CERTIFICATE).write_text(json.dumps(said))
    (new / ENTRY).write_text(
        (new / ENTRY).read_text().replace(f'"version": "{old.name}"', '"version": "99.0"')
    )
    script("register", "register_site").build(tmp_path / "site", register)
    return tmp_path / "site"


def test_what_is_new_wrong_between_two_entries_of_an_engine(page: Page, newer: Path):
    page.go((newer / "index.html").as_uri())
    look(page, "what is new wrong in onnxruntime 99.0?")
    page.until("place()[0] === 'versions'")
    told = page.text("main")
    assert re.search(r"ONNX Runtime: [\d.]+ → 99.0", told)
    assert re.search(r"worse\s+core softmax f16\s+state\s+full\s+failing, 3 failed", told)
    assert len(re.findall(r"faster\s+add f32", told)) == 3
    assert "No; 3 of" in look(page, "softmax f16 onnx")
    assert page.value("newest.length") == 1


def test_versions_judged_with_other_options_are_not_compared(tmp_path: Path):
    old = [each for each in FOLDERS if each.parent.name == "onnxruntime"][-1]
    for version, flags in (
        ("1.0", []),
        ("2.0", ["library=a.so"]),
        ("3.0", ["library=b.so", "avoid=nothing"]),
    ):
        new = Path(shutil.copytree(old, tmp_path / "onnxruntime" / version))
        entry = json.loads((new / ENTRY).read_text()) | {"version": version, "flags": flags}
        (new / ENTRY).write_text(json.dumps(entry))
    data = script("register", "register_site").register_data(tmp_path)
    assert [each["version"] for each in data["entries"] if each["newest"]] == ["2.0", "3.0"]
    assert [(each["before"], each["after"]) for each in data["changes"]] == [
        ("onnxruntime/1.0", "onnxruntime/2.0")
    ]


def test_an_op_opens_its_dtypes_by_the_keyboard(page: Page):
    page.value("document.querySelector('main .row').focus()")
    assert page.value("document.querySelector('main .row').ariaExpanded") == "false"
    page.press("Enter")
    page.until("document.querySelector('main .row').ariaExpanded === 'true'")
    assert page.value("document.querySelectorAll('main .sub').length") >= 3
    page.press("Enter")
    page.until("!document.querySelector('main .sub')")


def test_a_state_is_told_by_a_mark_and_in_words_and_not_by_colour_alone(page: Page):
    told = page.value(
        "[...document.querySelectorAll('main td > span')].map((e) => [e.textContent.trim(), e.ariaLabel])"
    )
    marks = page.value("Object.values(MARKS)")
    assert len(told) > 100
    for mark, label in told:
        assert mark[:1] in marks
        assert ": " in label
    assert page.value("[...document.querySelectorAll('input, select')].every((e) => e.labels.length)")


def test_a_fault_shows_its_script_to_copy(page: Page):
    page.value("location.hash = 'faults/ggml_nearest'")
    page.until("document.querySelector('#ggml_nearest')?.open")
    assert "ggml_interpolate" in page.text("#ggml_nearest pre")
    page.click("#ggml_nearest .copy")
    page.until("document.querySelector('#ggml_nearest .copy').textContent === 'Copied'")


def test_two_engines_stand_side_by_side(page: Page):
    page.value("location.hash = 'pair'")
    page.until("document.querySelectorAll('main select').length === 3")
    left, right = (
        next(name for name in NAMES if name.startswith(f"{engine}/")) for engine in ("wgpu", "ggml")
    )
    page.value(f"pairState.left = '{left}', pairState.right = '{right}', draw()")
    assert "wgpu" in page.text("main thead")
    lines = page.value("document.querySelectorAll('main tbody tr').length")
    assert lines > 50
    page.value("pairState.by = 'all', draw()")
    assert page.value("document.querySelectorAll('main tbody tr').length") > lines


def test_failures_stand_by_their_cause(page: Page):
    page.value("location.hash = 'refused?q=openvino'")
    page.until("document.querySelectorAll('main .cause').length > 3")
    causes = page.value("[...document.querySelectorAll('main .cause > summary')].map((e) => e.textContent)")
    assert len(set(causes)) == len(causes)
    assert any(
        re.search(r"Known: integers of 64 bits are cut to 32 \d+ calls of .*copy", told) for told in causes
    )
    page.click("main .cause > summary")
    assert page.value("document.querySelectorAll('main .cause[open] > details').length") >= 1


def test_light_and_dark_and_narrow_have_pictures(page: Page, tmp_path: Path):
    sizes = set()
    for name, width, dark in (("wide", 1400, False), ("dark", 1400, True), ("narrow", 390, False)):
        page.size(width, 900, dark=dark)
        page.picture(tmp_path / f"{name}.png")
        sizes.add(page.value("getComputedStyle(document.body).backgroundColor"))
    assert len(sizes) == 2
