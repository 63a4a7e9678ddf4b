"""openai-python over a socket: transcripts, translations, and sounds in chat."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types.audio import TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent
from serving import serving
from small_sound import write_small_sound
from small_whisper import write_whisper
from sounds import as_file, heard

from backbay_engine import Transcript, load

SPEECH = as_file(heard(5.0))
DRAWN, SHORT = 0.5, 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    """A client of a Whisper, and of a model that hears."""
    hearing, _ = write_small_sound(tmp_path_factory.mktemp("hearing"), "voxtral")
    options = {"threads": 1, "context": SHORT, "max_loaded": 2, "aliases": {"whisper-1": str(folder)}}
    with (
        serving(folder, hearing, **options) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def right(folder: Path) -> Transcript:
    """The engine's transcript."""
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        found: Transcript = opened.transcribe(SPEECH, temperature=DRAWN)
    return found


def test_a_file_is_transcribed(client: OpenAI, right: Transcript, tmp_path: Path) -> None:
    file = tmp_path / "speech.wav"
    file.write_bytes(SPEECH)
    found = client.audio.transcriptions.create(model="whisper-1", file=file, temperature=DRAWN)
    assert found.text == right.text
    assert found.usage is not None
    assert found.usage.type == "duration"
    assert found.usage.seconds == 5.0
    for form, text in (("text", right.text + "\n"), ("srt", right.srt), ("vtt", right.vtt)):
        assert text == client.audio.transcriptions.create(
            model="tiny", file=file, temperature=DRAWN, response_format=form
        )


def test_segments_have_their_times(client: OpenAI, right: Transcript) -> None:
    found = client.audio.transcriptions.create(
        model="tiny",
        file=("speech.wav", SPEECH),
        temperature=DRAWN,
        prompt="",
        response_format="verbose_json",
        timestamp_granularities=["segment"],
    )
    assert (found.text, found.language, found.duration) == (right.text, right.language, 5.0)
    assert found.segments is not None
    assert [each.model_dump() for each in found.segments] == right.entry["segments"]
    with pytest.raises(openai.BadRequestError, match="words have none") as caught:
        client.audio.transcriptions.create(
            model="tiny",
            file=SPEECH,
            response_format="verbose_json",
            timestamp_granularities=["word", "segment"],
        )
    assert caught.value.param == "timestamp_granularities"


def test_a_transcript_is_streamed(client: OpenAI, right: Transcript) -> None:
    stream = client.audio.transcriptions.create(model="tiny", file=SPEECH, temperature=DRAWN, stream=True)
    *deltas, done = stream
    assert all(isinstance(each, TranscriptionTextDeltaEvent) for each in deltas)
    assert "".join(each.delta for each in deltas) == right.text
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert done.text == right.text


def test_a_file_is_translated(client: OpenAI, folder: Path) -> None:
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        wanted = opened.transcribe(SPEECH, temperature=DRAWN, task="translate")
    found = client.audio.translations.create(model="tiny", file=SPEECH, temperature=DRAWN)
    assert found.text == wanted.text
    verbose = client.audio.translations.create(
        model="tiny", file=SPEECH, temperature=DRAWN, response_format="verbose_json"
    )
    assert (verbose.language, verbose.duration, verbose.text) == ("english", 5.0, wanted.text)


def test_what_goes_wrong_is_the_error_that_it_is(client: OpenAI) -> None:
    create = client.audio.transcriptions.create
    for model in ("tiny", "voxtral"):
        with pytest.raises(openai.BadRequestError):
            create(model=model, file=b"nothing that sounds")
    with pytest.raises(openai.BadRequestError, match="writes no transcripts"):
        create(model="voxtral", file=SPEECH)
    with pytest.raises(openai.NotFoundError):
        create(model="gpt-transcribe", file=SPEECH)
    with pytest.raises(openai.BadRequestError, match="/v1/audio/transcriptions"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}])


def test_a_sound_is_part_of_a_message(client: OpenAI) -> None:
    data = base64.b64encode(as_file(heard(0.2))).decode()
    answer = client.chat.completions.create(
        model="voxtral",
        messages=[
            {
                "role": "user",
                "content": [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}],
            }
        ],
        max_tokens=2,
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 13  # the rows of the sound
    with pytest.raises(openai.BadRequestError, match="no WAV, FLAC, OGG or MP3 file"):
        client.chat.completions.create(
            model="voxtral",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}],
                }
            ],
        )
