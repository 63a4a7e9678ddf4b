"""The page in a headless Chromium: a conversation, stop, regenerate, keys, the server's state; nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, browser, chromium
from processes import Served, serving
from scripted_model import SCRIPTS, write_scripted_model

from backbay_server.page import POLICY

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium: name one in BACKBAY_CHROMIUM")
ANSWER = "article.assistant:last-of-type .text"
OVER = "document.querySelector('#stop').hidden"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("models") / "scripted.gguf"
    write_scripted_model(path)
    with serving(path, "--backend", "cpu_ref") as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    program = chromium()
    assert program is not None
    with browser(program, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(shared: Page, server: Served) -> Iterator[Page]:
    opened(shared, server.url)
    yield shared
    assert not shared.faults


def opened(page: Page, url: str) -> None:
    page.go("about:blank")  # the last test's page asks its server no more
    page.faults.clear()
    page.size(1280, 800)
    page.go(url)


def ask(page: Page, text: str) -> None:
    page.until("document.querySelector('#model').value")
    page.value("document.querySelector('#prompt').focus()")
    page.write(text, enter=True)
    page.until("document.querySelectorAll('article.user').length")


def test_an_answer_comes_with_its_figures(page: Page) -> None:
    ask(page, "Say it [hello]")
    page.until(f"document.querySelector('{ANSWER}')?.innerText && {OVER}")
    assert page.text(ANSWER) == SCRIPTS["hello"].text
    assert page.text("article.user .text") == "Say it [hello]"
    assert "tokens" in page.text("article.assistant .under")
    assert page.value("document.querySelector('#welcome').hidden")


def test_an_answer_is_stopped_and_the_slot_is_free(page: Page) -> None:
    ask(page, "On and on [endless]")
    page.until(f"document.querySelector('{ANSWER}')?.innerText.length > 20")
    page.press("Escape")
    page.until(OVER)
    assert "stopped" in page.text("article.assistant .under")
    page.until("document.querySelector('#running').textContent === '0'")


def test_an_answer_is_made_anew(page: Page) -> None:
    ask(page, "Say it [hello]")
    page.until(f"document.querySelector('article .under button') && {OVER}")
    page.value("[...document.querySelectorAll('.under button')].at(-1).click()")
    page.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r} && {OVER}")
    assert page.value("document.querySelectorAll('article').length") == 2


def test_a_fault_in_mid_stream_is_shown(page: Page) -> None:
    ask(page, "Break [faulty]")
    page.until("document.querySelector('.fault')")
    assert page.text(ANSWER)
    assert page.value(OVER)


def test_the_state_shows_slots_and_memory(page: Page) -> None:
    page.click("#show-state")
    page.until("document.querySelectorAll('.slots i').length === 4")
    assert "ready" in page.text(".held .badge")
    assert page.value("document.querySelectorAll('.device rect.weights').length") >= 2
    assert "weights" in page.text(".legend")


def test_an_answer_brings_no_elements_of_its_own(page: Page) -> None:
    hostile = "# <img src=x onerror=alert(1)>\\n**<b>**\\n```html\\n<script>alert(1)</script>\\n```\\n[a](javascript:alert(1))"
    kinds = page.value(
        f"import('/page/markdown.js').then(m => [...m.render('{hostile}').querySelectorAll('*')].map(e => e.tagName).join(' '))"
    )
    assert not {"IMG", "B", "SCRIPT", "A"} & set(kinds.split())


def test_the_policy_allows_nothing_from_elsewhere(page: Page) -> None:
    assert "'self'" in POLICY
    assert "unsafe" not in POLICY
    assert "http" not in POLICY
    assert page.value("fetch('http://127.0.0.1:1/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.faults.pop(0).startswith("Connecting to 'http://127.0.0.1:1/' violates")
    page.faults.clear()
    loaded = page.value("performance.getEntriesByType('resource').map(each => new URL(each.name).origin)")
    assert set(loaded) - {"http://127.0.0.1:1"} == {page.value("location.origin")}


def test_a_key_is_asked_for_and_used(shared: Page, server: Served, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    model = tmp_path / "scripted.gguf"
    write_scripted_model(model)
    with serving(model, "--backend", "cpu_ref", "--api-key-file", keys) as locked:
        opened(shared, locked.url)
        shared.until("document.querySelector('#status').innerText.includes('API key')")
        change = "e.value = 'sesame'; e.dispatchEvent(new Event('change'))"
        shared.value(f"(() => {{ const e = document.querySelector('#key'); {change} }})()")
        ask(shared, "Say it [hello]")
        shared.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r}")


def test_it_fits_a_telephone(page: Page) -> None:
    page.size(390, 800)
    assert page.value("document.documentElement.scrollWidth") == 390
    edges = "['#model', '#new'].map(name => document.querySelector(name).getBoundingClientRect())"
    assert page.value(f"(([a, b]) => a.right <= b.left)({edges})")


def test_a_picture_goes_with_a_question_where_the_model_sees(shared: Page) -> None:
    models = Path(__file__).parents[4] / "examples" / "models"
    with serving(models / "backbay-tiny-vision-f16.gguf", "--backend", "cpu_ref") as seeing:
        opened(shared, seeing.url)
        shared.until("!document.querySelector('#attach').hidden")
        shared.value("""(async () => {
            const canvas = document.createElement('canvas');
            canvas.width = canvas.height = 64;
            canvas.getContext('2d').fillRect(8, 8, 20, 40);
            const blob = await new Promise(done => canvas.toBlob(done, 'image/png'));
            const files = new DataTransfer();
            files.items.add(new File([blob], 'shape.png', { type: 'image/png' }));
            document.dispatchEvent(new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true }));
        })()""")
        shared.until("document.querySelector('#pictures img')")
        ask(shared, "number")
        shared.until(f"document.querySelector('article .under button') && {OVER}")
        assert shared.value("document.querySelector('article.user img').src.startsWith('data:image/png')")
        assert shared.value("document.querySelectorAll('.fault').length") == 0
        assert not shared.faults
