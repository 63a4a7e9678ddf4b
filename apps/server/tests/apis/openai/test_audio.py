"""Sounds in chat, and transcripts, by small models with random weights."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from patience import wait_until
from scripted_model import write_scripted_model
from serving import Served, chunks_of, client_of, serving
from small_sound import KINDS, write_small_sound
from small_whisper import CONTEXT, write_ggml, write_whisper
from sounds import as_file, heard

from backbay_engine import Transcript, load

SOUND = as_file(heard(0.5))
DATA = base64.b64encode(SOUND).decode()
INPUT = {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}
URL = {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{DATA}"}}
TEXT = {"type": "text", "text": "What?"}
SPEECH = as_file(heard(5.0))
DRAWN = 0.5
SHORT = 20  # tokens of a window's transcript


# -- in chat -----------------------------------------------------------------------------------------------


def chat(*parts: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts, TEXT]}], "max_tokens": 4, "temperature": 0}


def asked(model: Path, *bodies: tuple[str, dict[str, Any]], **settings: Any) -> list[tuple[int, Any]]:
    async def asking() -> list[tuple[int, Any]]:
        async with client_of(model, threads=1, **settings) as client:
            found = [await client.post(path, json=body) for path, body in bodies]
            return [(each.status_code, each.json()) for each in found]

    return asyncio.run(asking())


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_is_heard_as_by_the_engine(kind: str, tmp_path: Path) -> None:
    model, projector = write_small_sound(tmp_path, kind)
    with load(model, "cpu_ref", projector=projector, context=256, num_threads=1) as llm:
        whole = llm.chat(chat(INPUT)["messages"], max_tokens=4, temperature=0)
    item = {"role": "user", "content": [INPUT, {"type": "input_text", "text": "What?"}]}
    by_parts, by_url, response = asked(
        model,
        ("/v1/chat/completions", chat(INPUT)),
        ("/v1/chat/completions", chat(URL)),
        ("/v1/responses", {"input": [item], "max_output_tokens": 4, "temperature": 0}),
        context=256,
    )
    for status, body in (by_parts, by_url):
        assert (status, body["choices"][0]["message"]["content"]) == (200, whole.text)
        assert body["usage"]["prompt_tokens"] == whole.timings.prompt_tokens
    assert response[1]["output"][0]["content"][0]["text"] == whole.text


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "input_audio", "input_audio": {"data": "?"}}, "no base64"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA"}}, "no WAV, FLAC, OGG or MP3 file"),
        ({"type": "input_audio", "input_audio": {"data": ""}}, "empty"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "data"),
        ({"type": "audio_url", "audio_url": {"url": "http://127.0.0.1:9/a.wav"}}, "nothing is fetched"),
        ({"type": "audio_url", "audio_url": {"url": "/etc/passwd"}}, "must be a data: URL"),
    ],
)
@pytest.mark.fault("a sound in a chat cannot be decoded", "400 that says what is wrong; nothing is fetched")
def test_a_sound_that_cannot_be_taken_is_a_400(hearing: Served, part: Any, reason: str) -> None:
    found = httpx.post(f"{hearing.url}/v1/chat/completions", json=chat(part), timeout=300)
    error = found.json()["error"]
    assert (found.status_code, error["type"]) == (400, "invalid_request_error")
    assert reason in error["message"]


def test_sounds_are_counted(hearing: Served) -> None:
    found = httpx.post(f"{hearing.url}/v1/chat/completions", json=chat(*[INPUT] * 65), timeout=300)
    told = "the conversation has 65 sounds, at most 64 are taken"
    assert (found.status_code, found.json()["error"]["message"]) == (400, told)


def test_a_sound_may_be_longer_than_a_text(hearing: Served) -> None:
    long = base64.b64encode(
        as_file(np.zeros(1 << 20, np.int16))
    ).decode()  # of more letters than a request has
    body = chat({"type": "input_audio", "input_audio": {"data": long}})
    found = httpx.post(f"{hearing.url}/v1/chat/completions", json=body, timeout=300)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("part", [INPUT, URL])
def test_a_model_that_hears_nothing_says_so(part: Any, tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "scripted.gguf")
    [(status, body)] = asked(model, ("/v1/chat/completions", chat(part)))
    assert (status, body["error"]["type"]) == (400, "invalid_request_error")
    assert "hears no sound" in body["error"]["message"]


@pytest.fixture(scope="module")
def hearing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model, _ = write_small_sound(tmp_path_factory.mktemp("hearing"), "voxtral")
    with serving(model, threads=1, context=128) as server:
        yield server


# -- transcripts -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def whisper(folder: Path) -> Iterator[Served]:
    with serving(folder, threads=1, context=SHORT, parallel=1, queue=2) as server:
        yield server


@pytest.fixture(scope="module")
def right(folder: Path) -> Transcript:
    """The engine's transcript."""
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        found: Transcript = opened.transcribe(SPEECH, temperature=DRAWN)
    return found


def post(server: Served, sound: Any = SPEECH, path: str = "transcriptions", **fields: Any) -> httpx.Response:
    files: Any = {"user": (None, "")} if sound is None else {"file": ("speech.wav", sound)}
    fields = {"temperature": str(DRAWN), **fields}  # one trial for each window
    return httpx.post(f"{server.url}/v1/audio/{path}", files=files, data=fields, timeout=300)


def test_a_sound_is_transcribed_in_every_form(whisper: Served, right: Transcript) -> None:
    assert right.text
    found = post(whisper).json()
    assert found == {"text": right.text, "usage": {"seconds": 5.0, "type": "duration"}}
    for form, text in (("text", right.text + "\n"), ("srt", right.srt), ("vtt", right.vtt)):
        answer = post(whisper, response_format=form)
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.text == text
    verbose = post(whisper, response_format="verbose_json", timestamp_granularities="segment").json()
    assert verbose == {**right.entry, "usage": {"seconds": 5.0, "type": "duration"}}
    assert len(verbose["segments"]) > 2


def test_a_translation_is_one_into_english(whisper: Served, folder: Path, right: Transcript) -> None:
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        wanted = opened.transcribe(SPEECH, task="translate", language="de", temperature=DRAWN)
    found = post(whisper, path="translations", language="de", response_format="verbose_json").json()
    assert (found["task"], found["language"], found["text"]) == ("translate", "english", wanted.text)
    logprobs = [each["avg_logprob"] for each in found["segments"]]
    assert logprobs == [each.avg_logprob for each in wanted] != [each.avg_logprob for each in right]


def test_options_reach_the_engine(whisper: Served, folder: Path) -> None:
    given: dict[str, Any] = {"language": "German", "prompt": "Once", "temperature": 0.7}
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        wanted = opened.transcribe(SPEECH, **given)
    found = post(whisper, **given, response_format="verbose_json").json()
    assert found["language"] == "de"
    assert [each["text"] for each in found["segments"]] == [each.text for each in wanted]
    assert {each["temperature"] for each in found["segments"]} == {0.7}


def test_without_a_temperature_each_window_has_several_trials(whisper: Served, folder: Path) -> None:
    with load(folder, "cpu_ref", num_threads=1, context=SHORT) as opened:
        wanted = opened.transcribe(SOUND)
    for temperature in ("", "0"):  # a text that is empty asks for nothing
        assert post(whisper, SOUND, temperature=temperature, language="").json()["text"] == wanted.text


def test_the_text_is_streamed_in_pieces(whisper: Served, right: Transcript) -> None:
    *deltas, done = chunks_of(post(whisper, stream="true").text)
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 2
    assert "".join(each["delta"] for each in deltas) == right.text
    assert done == {
        "type": "transcript.text.done",
        "text": right.text,
        "usage": {"seconds": 5.0, "type": "duration"},
    }


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"timestamp_granularities[]": "word"}, "words have none"),
        ({"response_format": "pdf"}, "response_format"),
        ({"temperature": "1.5"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"language": "klingon"}, "knows no language 'klingon'"),
        ({"stream": "true", "response_format": "srt"}, "a stream gives text"),
        ({"include[]": "logprobs"}, "no log-probabilities"),
        ({"known_speaker_names[]": "Ada"}, "tells no speakers apart"),
        ({"diarize": "true"}, "Unrecognized request argument supplied: diarize"),
    ],
)
def test_what_cannot_be_is_a_400(whisper: Served, fields: dict[str, str], reason: str) -> None:
    found = post(whisper, **fields)
    error = found.json()["error"]
    assert (found.status_code, error["type"]) == (400, "invalid_request_error")
    assert reason in error["message"]


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize(
    ("sound", "reason"),
    [
        (None, "missing required field `file`"),
        (b"", "is empty"),
        (b"nothing that sounds", "is no WAV, FLAC, OGG or MP3 file"),
        (SPEECH[:-100], "is truncated"),
    ],
)
@pytest.mark.fault("a file to transcribe is missing, empty, or damaged", "400 that says what is wrong")
def test_a_damaged_file_is_a_400(whisper: Served, sound: bytes | None, reason: str, stream: str) -> None:
    found = post(whisper, sound, stream=stream, model="tiny")
    assert (found.status_code, found.json()["error"]["type"]) == (400, "invalid_request_error")
    assert reason in found.json()["error"]["message"]


def test_a_whisper_takes_no_conversation_and_others_no_sound(whisper: Served, hearing: Served) -> None:
    for path, body in (
        ("chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("completions", {"prompt": "Hello"}),
        ("responses", {"input": "Hello"}),
        ("embeddings", {"input": "Hello"}),
        ("rerank", {"query": "Hello", "documents": ["Hello"]}),
        ("messages/count_tokens", {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}),
    ):
        found = httpx.post(f"{whisper.url}/v1/{path}", json=body, timeout=300)
        assert found.status_code == 400, path
        assert "send them to /v1/audio/transcriptions" in found.json()["error"]["message"]
    found = post(hearing)
    assert found.status_code == 400
    assert "writes no transcripts; load a Whisper" in found.json()["error"]["message"]
    assert post(hearing, model="whisper-1").status_code == 404


def test_the_body_is_bounded_and_a_form(folder: Path) -> None:
    with serving(folder, threads=1, context=SHORT, max_body=1 << 16) as small:
        assert post(small, SOUND).status_code == 200
        found = post(small, SPEECH)
        assert (found.status_code, found.json()["error"]["type"]) == (413, "invalid_request_error")
        found = httpx.post(f"{small.url}/v1/audio/transcriptions", json={"file": DATA}, timeout=300)
        assert (found.status_code, "multipart/form-data" in found.text) == (400, True)


@pytest.mark.fault("a client leaves while its sound is transcribed", "its slot is free after one step")
@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_client_that_leaves_frees_its_slot(whisper: Served, stream: str) -> None:
    llm, before = whisper.model("tiny"), generated(whisper)
    post(whisper)
    alone = generated(whisper) - before
    long = as_file(heard(300.0))

    async def leaving() -> None:
        url = f"{whisper.url}/v1/audio/transcriptions"
        async with httpx.AsyncClient(timeout=300) as client:
            asked = asyncio.create_task(client.post(url, files={"file": long}, data={"stream": stream}))
            while not llm.state().busy:
                assert not asked.done()
                await asyncio.sleep(0.01)
            asked.cancel()

    asyncio.run(leaving())
    wait_until(lambda: not whisper.busy("tiny"))
    before = generated(whisper)
    post(whisper)
    assert generated(whisper) - before == alone  # nothing of the long sound goes on


def generated(server: Served) -> int:
    """The tokens that the model has made so far."""
    return server.model("tiny").state().totals.generated


@pytest.mark.fault("more sounds come than may wait", "429 with Retry-After")
def test_sounds_wait_in_a_queue_of_bounded_length(whisper: Served) -> None:
    long = as_file(heard(60.0))

    async def asking() -> list[int]:
        url = f"{whisper.url}/v1/audio/transcriptions"
        async with httpx.AsyncClient(timeout=300) as client:
            body: Any = {"files": {"file": long}, "data": {"temperature": "0.5"}}
            asked = [asyncio.create_task(client.post(url, **body)) for _ in range(4)]
            first, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            for each in asked:
                each.cancel()
            answers = [each.result() for each in first]
            assert all(each.headers["retry-after"] for each in answers)
            return [each.status_code for each in answers]

    assert asyncio.run(asking()) == [429]
    assert post(whisper).status_code == 200


def test_a_whisper_has_no_more_tokens_than_it_has_learned(folder: Path, tmp_path: Path) -> None:
    text = write_scripted_model(tmp_path / "scripted.gguf")
    with serving(folder, text, threads=1, context=512, max_loaded=2) as server:
        assert post(server, SOUND, model="tiny").status_code == 200
        assert server.model("tiny").context == CONTEXT
        body = {"model": "scripted", "prompt": "Say [hello]"}
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).raise_for_status()
        assert server.model("scripted").context == 512


def test_files_of_whisper_cpp_are_on_offer(tmp_path: Path) -> None:
    write_ggml(tmp_path / "ggml-tiny.bin")
    with serving(tmp_path / "ggml-tiny.bin", threads=1, context=SHORT) as server:
        assert post(server, SOUND, model="ggml-tiny").json()["usage"]["seconds"] == 0.5
    with serving(folders=(str(tmp_path),), threads=1, context=SHORT) as server:
        listed = httpx.get(f"{server.url}/v1/models", timeout=300).json()
        assert [each["id"] for each in listed["data"]] == ["ggml-tiny"]
        assert post(server, SOUND, model="ggml-tiny").status_code == 200


def test_the_state_and_the_metrics_know_of_sound(whisper: Served, hearing: Served) -> None:
    def of(server: Served) -> Any:
        [model] = httpx.get(f"{server.url}/state", timeout=300).json()["models"]
        return model["images"], model["sounds"], model["transcribes"]

    assert (of(whisper), of(hearing)) == ((False, True, True), (False, True, False))
    assert httpx.get(f"{hearing.url}/props", timeout=300).json()["modalities"] == {
        "vision": False,
        "audio": True,
    }
    show = [
        httpx.post(f"{each.url}/api/show", json={"model": name}, timeout=300).json()
        for each, name in ((whisper, "tiny"), (hearing, "voxtral"))
    ]
    assert [each["capabilities"] for each in show] == [[], ["completion"]]
    post(whisper, SOUND)
    told = httpx.get(f"{whisper.url}/metrics", timeout=300).text
    assert 'gen_ai_operation_name="transcription",gen_ai_request_model="tiny"' in told
