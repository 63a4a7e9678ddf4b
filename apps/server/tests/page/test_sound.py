"""The page with models that hear: sounds that are attached, dropped and recorded, and their transcripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from chat_page import WHOLE, ask, opened, wait_until_kept
from processes import Served, serving
from small_sound import write_small_sound
from small_whisper import write_whisper
from sounds import as_file, heard

from backbay_engine import Transcript, load

SPEECH = as_file(heard(1.5))
SHORT = 20  # tokens of a transcript
TURNS = """import('/page/conversations.js').then(async ({ Conversations }) => {
    const store = new Conversations(), [first] = await store.list();
    return (await store.get(first.id)).turns;
})"""


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model, _ = write_small_sound(tmp_path_factory.mktemp("hearing"), "qwen2-audio")
    with serving(model, "--backend", "cpu_ref", "--context", 256) as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Iterator[Served]:
    with serving(folder, "--backend", "cpu_ref", "--context", SHORT) as found:
        yield found


def drop(page: Page, data: bytes, name: str, kind: str) -> None:
    """Drop a file into the page."""
    page.until("!document.querySelector('#attach').hidden")
    page.value(f"""(() => {{
        const bytes = Uint8Array.from(atob('{base64.b64encode(data).decode()}'), letter => letter.charCodeAt(0));
        const files = new DataTransfer();
        files.items.add(new File([bytes], '{name}', {{ type: '{kind}' }}));
        document.dispatchEvent(new DragEvent('drop', {{ dataTransfer: files, bubbles: true, cancelable: true }}));
    }})()""")


def sent_sounds(page: Page) -> list[bytes]:
    """The files of the last question, as the browser keeps them."""
    wait_until_kept(page)
    turn = next(each for each in reversed(page.value(TURNS)) if each["role"] == "user")
    return [base64.b64decode(url.partition(",")[2]) for url in turn["sounds"]]


def test_a_sound_goes_with_a_question_where_the_model_hears(shared: Page, hearing: Served) -> None:
    opened(shared, hearing.url)
    drop(shared, as_file(heard(0.3)), "speech.wav", "audio/wav")
    shared.until("document.querySelector('#attachments audio')")
    assert shared.value("document.querySelector('#file').accept") == "audio/*"
    drop(shared, b"\x89PNG", "shape.png", "image/png")  # not for this model
    ask(shared, "What?")
    shared.until(WHOLE)
    shared.until("document.querySelector('article.user audio').duration > 0.29")  # it can be played
    assert shared.value("document.querySelectorAll('article.user img, .fault').length") == 0
    assert sent_sounds(shared) == [as_file(heard(0.3))]
    assert not shared.faults


def test_the_microphone_is_recorded_as_a_file_that_the_server_reads(shared: Page, hearing: Served) -> None:
    soundfile: Any = pytest.importorskip("soundfile")
    opened(shared, hearing.url)
    shared.until("!document.querySelector('#record').hidden")
    shared.click("#record")
    shared.until("document.querySelector('#record').ariaPressed === 'true'")
    shared.value("new Promise(done => setTimeout(done, 400))")
    shared.click("#record")
    shared.until("document.querySelector('#attachments audio')")
    assert shared.value("document.querySelector('#record').ariaPressed") == "false"
    ask(shared, "What?")
    shared.until(WHOLE)
    assert shared.value("document.querySelectorAll('.fault').length") == 0
    [sound] = sent_sounds(shared)
    samples, rate = soundfile.read(io.BytesIO(sound))
    assert (samples.ndim, rate) == (1, 16_000)
    assert len(samples) > 1600
    assert not shared.faults


def test_a_file_that_is_no_sound_is_refused_by_name(shared: Page, hearing: Served) -> None:
    opened(shared, hearing.url)
    drop(shared, b"nothing that sounds", "talk.m4a", "audio/mp4")
    shared.until("document.querySelector('#status').innerText === 'talk.m4a cannot be read.'")
    assert not shared.value("document.querySelector('#attachments audio')")


def test_a_sound_can_be_removed(shared: Page, hearing: Served) -> None:
    opened(shared, hearing.url)
    drop(shared, SPEECH, "speech.wav", "audio/wav")
    shared.until("!document.querySelector('#send').disabled")
    shared.click("#attachments button[aria-label='Remove sound 1']")
    shared.until("!document.querySelector('#attachments audio') && document.querySelector('#send').disabled")


def test_a_whisper_writes_down_what_is_said(shared: Page, whisper: Served, folder: Path) -> None:
    with load(folder, "cpu_ref", context=SHORT) as opened_model:
        right: Transcript = opened_model.transcribe(SPEECH)
    opened(shared, whisper.url)
    shared.until("document.querySelector('#prompt').placeholder === 'Attach or record a sound'")
    assert shared.value("document.querySelector('.ideas').hidden")
    shared.value("document.querySelector('#prompt').focus()")
    shared.write("Hello", enter=True)
    shared.until("document.querySelector('#status').innerText.includes('attach a sound, or record one')")
    shared.value("document.querySelector('#prompt').value = ''")
    for _ in range(2):
        drop(shared, SPEECH, "speech.wav", "audio/wav")
    shared.until("document.querySelectorAll('#attachments audio').length === 2")
    shared.click("#send")
    shared.until(f"document.querySelectorAll('article.user').length === 1 && {WHOLE}")
    wait_until_kept(shared)
    assert shared.value(TURNS)[-1]["answers"][0]["text"] == f"{right.text}\n\n{right.text}"
    assert shared.value("document.querySelectorAll('.fault').length") == 0
    assert not shared.faults


def test_a_model_that_hears_nothing_is_offered_no_sound(page: Page) -> None:
    page.until("document.querySelector('#model').value && document.querySelector('#status').innerText === ''")
    assert page.value("document.querySelector('#attach').hidden && document.querySelector('#record').hidden")
