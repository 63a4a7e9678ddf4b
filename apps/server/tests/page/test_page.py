"""The page in a headless Chromium: a conversation, stop, regenerate, keys, the server's state; nothing from elsewhere."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from browser import Page
from chat_page import ANSWER, OVER, WHOLE, ask, choose, opened
from processes import Served, serving
from scripted_model import SCRIPTS, write_scripted_model

from backbay_server.page import POLICY


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
    page.until(WHOLE)
    page.click(".again button")
    page.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r} && {OVER}")
    assert page.value("document.querySelectorAll('article').length") == 2


def test_a_fault_in_mid_stream_is_shown(page: Page) -> None:
    ask(page, "Break [faulty]")
    page.until("document.querySelector('.fault')")
    assert page.text(ANSWER)
    assert page.value(OVER)


def test_the_state_shows_slots_and_memory(page: Page) -> None:
    page.click("#show-state")
    page.until("document.querySelectorAll('.held:first-child .slots i').length === 4")
    assert "ready" in page.text(".held .badge")
    assert "cpu_ref" in page.text(".held .facts")
    assert page.value("document.querySelectorAll('.device rect.weights').length") >= 2
    assert "weights" in page.text(".legend")


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
        choose(shared, "key", "sesame")
        ask(shared, "Say it [hello]")
        shared.until(f"document.querySelector('{ANSWER}')?.innerText === {SCRIPTS['hello'].text!r}")


def test_it_fits_a_small_telephone(page: Page) -> None:
    page.size(360, 740)
    page.until("document.querySelector('#model').value")
    assert page.value("document.documentElement.scrollWidth") == 360
    model, *buttons = page.value(
        "['#model', '#new', '#show-chats', '#show-settings', '#show-state'].map(name => {"
        " const { left, right, top, bottom } = document.querySelector(name).getBoundingClientRect();"
        " return [left, right, top, bottom] })"
    )
    assert model[1] - model[0] > 250
    assert all(0 <= left < right <= 360 and top >= model[3] for left, right, top, _ in buttons)
    assert all(before[1] <= after[0] for before, after in pairwise(buttons))


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
        shared.until("document.querySelector('#attachments img')")
        ask(shared, "number")
        shared.until(WHOLE)
        assert shared.value("document.querySelector('article.user img').src.startsWith('data:image/png')")
        assert shared.value("document.querySelectorAll('.fault').length") == 0
        assert not shared.faults
