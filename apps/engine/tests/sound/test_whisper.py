"""Whisper agrees with transformers: rows, logits, languages and transcripts, which lab/engine/compare_whisper.py stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_scripts import nmse
from patience import PATIENCE, wait_until
from small_llama import write_small_llama
from small_sound import write_small_sound
from small_whisper import BINS, POSITIONS, SOUNDS, WIDTH, write_whisper
from sounds import heard

import backbay
from backbay import CancelledError, ClosedError
from backbay_engine import LLM, Audio, AudioError, RequestError, Transcript, load
from backbay_engine.port import transcription

STORED = json.loads((Path(__file__).parents[1] / "data" / "sound" / "whisper.json").read_text())
IDS, RIGHT = STORED["ids"], STORED["sounds"]
BACKENDS = sorted(backbay.backends())
WINDOW, SHORT = 2 * POSITIONS, 20  # tokens, where answers need not be long


def audio(seconds: float) -> Audio:
    return Audio(heard(seconds), rate=16_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "model")


@pytest.fixture(scope="module", params=BACKENDS)
def whisper(folder: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with load(folder, request.param, kv_dtype="f32", num_threads=1, parallel=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def one(folder: Path) -> Iterator[LLM]:
    with load(folder, "cpu_ref", num_threads=1, parallel=2, context=SHORT) as opened:
        yield opened


@pytest.mark.parametrize("seconds", SOUNDS)
def test_numbers_and_transcripts_are_those_of_transformers(whisper: LLM, seconds: float) -> None:
    right, prepared = RIGHT[f"0 {seconds}"], whisper.prepare(audio(seconds))
    window = prepared.window(0, WINDOW)
    assert nmse(whisper.embed_audio(window)[-1], np.array(right["row"], np.float32)) < 1e-5
    assert nmse(whisper.logits(IDS, audio=window)[-1], np.array(right["logits"], np.float32)) < 1e-5
    found = whisper.transcribe(prepared, language="de", temperature=0.0)
    end = whisper.tokenizer.token_id("<|endoftext|>")
    assert end is not None
    segments = [(each.start, each.end, [id for id in each.tokens if id < end]) for each in found]
    assert [each[2] for each in segments] == [each[2] for each in right["segments"]]
    times, wanted = ([each[:2] for each in some] for some in (segments, right["segments"]))
    np.testing.assert_allclose(times, wanted, atol=1e-3)
    language = whisper.transcribe(prepared, temperature=0.0).language
    assert whisper.tokenizer.token_id(f"<|{language}|>") == right["language"]


def test_prepared_sounds_are_windows_and_longer_ones(one: LLM) -> None:
    short, long = one.prepare(audio(0.3)), one.prepare(audio(5.0))
    assert short.mel.shape == (BINS, WINDOW)
    assert long.mel.shape == (BINS, 500)
    assert one.embed_audio(short).shape == (POSITIONS, WIDTH)
    assert one.embed_audio(long).shape == (3 * POSITIONS, WIDTH)
    assert one.modalities == {"text", "audio"}
    assert one.transcribes
    assert repr(one) == f"LLM(whisper, transcripts, context {SHORT})"
    with pytest.raises(AudioError, match=r"attends to 2.00 seconds of sound; transcribe takes longer ones"):
        one.logits(IDS, audio=long)


def test_logits_take_the_sound_apart_or_as_the_first_part(one: LLM) -> None:
    apart = one.logits(IDS, audio=audio(1.0))
    assert apart.shape == (len(IDS), one.vocabulary_size)
    np.testing.assert_array_equal(one.logits([audio(1.0), IDS]), apart)
    assert nmse(one.logits(IDS, audio=audio(1.5)), apart) > 1e-6  # it is heard
    for prompt in (IDS, [IDS, audio(1.0)]):
        with pytest.raises(RequestError, match="logits of token ids after one sound; give audio="):
            one.logits(prompt)


def test_recordings_share_steps_and_a_worker_gives_the_same(folder: Path, one: LLM) -> None:
    alone = [one.transcribe(audio(seconds), temperature=0.0) for seconds in SOUNDS]
    with ThreadPoolExecutor(len(SOUNDS)) as pool:
        together = list(pool.map(lambda each: one.transcribe(audio(each), temperature=0.0), SOUNDS))
    assert [each.text for each in together] == [each.text for each in alone]
    with load(folder, "cpu_ref", num_threads=1, context=SHORT, worker=True) as away:
        assert away.transcribe(audio(5.0), temperature=0.0) == alone[2]


def test_segments_stream_as_they_come(one: LLM) -> None:
    whole = one.transcribe(audio(5.0), language="German", temperature=0.0)
    stream = one.transcribe(audio(5.0), language="de", temperature=0.0, stream=True)
    assert next(stream) == whole[0]
    assert [whole[0], *stream] == list(whole.segments)
    assert whole.language == "de"
    assert whole.duration == 5.0
    assert whole.text == "".join(each.text for each in whole).strip()


def test_a_transcription_that_is_closed_ends_within_a_step(folder: Path) -> None:
    steps = []
    with load(folder, "cpu_ref", num_threads=1, parallel=1) as whisper:
        made = whisper.transcribe(audio(30.0), temperature=0.0, stream=True)
        first = next(made)
        assert (first.seek, made.duration) == (0, 30.0)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, made)
            wait_until(lambda: whisper.state().busy)
            made.close()
            steps = rest.result(PATIENCE)
        assert len(steps) < len(whisper.transcribe(audio(30.0), temperature=0.0)) - 1
        assert not whisper.state().busy
        assert list(made) == []


def test_a_transcript_of_a_model_that_is_closed_is_no_shorter_one(folder: Path) -> None:
    whisper = load(folder, "cpu_ref", num_threads=1)
    made = whisper.transcribe(audio(30.0), temperature=0.0, stream=True)
    next(made)
    whisper.close()
    with pytest.raises((CancelledError, ClosedError)):
        list(made)


def test_segments_name_the_frame_at_which_their_window_begins(one: LLM) -> None:
    found = one.transcribe(audio(5.0), timestamps=False, temperature=0.0)
    assert [each.seek for each in found] == [0, 200, 400]
    assert found.entry["segments"][1]["seek"] == 200


def test_times_never_fall_whatever_the_temperature(one: LLM) -> None:
    for temperature in (0.0, 0.7, 1.5):
        found = one.transcribe(audio(7.3), temperature=temperature)
        assert all(0 <= each.start <= each.end <= 7.3 for each in found)
        assert all(before.start <= after.start for before, after in pairwise(found))
        assert {each.temperature for each in found} == {temperature}


def test_without_timestamps_there_is_a_segment_for_each_window(one: LLM) -> None:
    found = one.transcribe(audio(5.0), timestamps=False, temperature=0.0)
    assert [(each.start, each.end) for each in found] == [(0, 2), (2, 4), (4, 5)]


def test_a_window_that_repeats_itself_is_tried_again(one: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "LEAST_LOGPROB", -100.0)
    monkeypatch.setattr(transcription, "MOST_COMPRESSED", 0.01)
    tried = one.transcribe(audio(1.0), temperature=(0.0, 0.3, 0.9))
    assert {each.temperature for each in tried} == {0.9}
    monkeypatch.setattr(transcription, "MOST_COMPRESSED", 100.0)
    assert {each.temperature for each in one.transcribe(audio(1.0))} == {0.0}
    monkeypatch.setattr(transcription, "LEAST_LOGPROB", 0.0)
    assert {each.temperature for each in one.transcribe(audio(1.0))} == {1.0}


def test_windows_in_which_nobody_speaks_are_left_out(one: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "SILENT", 0.0)
    monkeypatch.setattr(transcription, "LEAST_LOGPROB", 0.0)
    assert len(one.transcribe(audio(5.0))) == 0


def test_a_text_before_the_sound_changes_the_first_window(one: LLM) -> None:
    plain, told = (
        one.transcribe(audio(1.9), temperature=0.0, prompt=text) for text in ("", "Once, a model.")
    )
    assert plain.text != told.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"language": "klingon"}, "knows no language 'klingon'; it knows de, en, zh"),
        ({"language": 3}, "language must be a text"),
        ({"task": "sing"}, "task must be transcribe or translate"),
        ({"timestamps": "word"}, "timestamps must be True or False"),
        ({"temperature": ()}, "temperature must be a number"),
        ({"languages": "de"}, "unknown option 'languages'; nearest: 'language'"),
    ],
)
def test_wrong_options_are_refused(one: LLM, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        one.transcribe(audio(1.0), **options)


def test_a_whisper_writes_transcripts_alone(one: LLM) -> None:
    calls = (
        lambda: one.generate("Once"),
        lambda: one.generate([audio(1.0), "Once"]),
        lambda: one.chat([{"role": "user", "content": "Hello"}]),
        lambda: one.embed("Once"),
        lambda: one.save("Once"),
        lambda: list(one.score_tokens("Once")),
    )
    for call in calls:
        with pytest.raises(RequestError, match="whisper writes transcripts of sounds; use transcribe"):
            call()


def test_other_models_write_no_transcripts(tmp_path: Path) -> None:
    with load(write_small_llama(tmp_path / "text.gguf"), "cpu_ref", num_threads=1) as deaf:
        assert not deaf.transcribes
        with pytest.raises(RequestError, match="llama writes no transcripts; load a Whisper"):
            deaf.transcribe(audio(1.0))
        with pytest.raises(RequestError, match="as a part of its prompt, not as audio="):
            deaf.logits([1, 2], audio=audio(1.0))
    model, projector = write_small_sound(tmp_path, "voxtral")
    with (
        load(model, "cpu_ref", projector=projector, context=128, num_threads=1) as hearing,
        pytest.raises(RequestError, match="ask it for a transcript by chat or generate"),
    ):
        hearing.transcribe(audio(1.0))


def test_a_model_that_knows_english_alone_is_asked_for_nothing_else(tmp_path: Path) -> None:
    with load(write_whisper(tmp_path / "en", multilingual=False), "cpu_ref", num_threads=1) as english:
        found = english.transcribe(audio(1.0), language="English")
        assert isinstance(found, Transcript)
        assert len(found) > 0
        with pytest.raises(RequestError, match="knows no language 'de'; it knows en"):
            english.transcribe(audio(1.0), language="de")
        with pytest.raises(RequestError, match="knows English alone"):
            english.transcribe(audio(1.0), task="translate")


def test_a_folder_without_a_vocabulary_gives_numbers_alone(tmp_path: Path) -> None:
    folder = write_whisper(tmp_path / "bare")
    (folder / "tokenizer.json").unlink()
    with load(folder, "cpu_ref", num_threads=1) as bare:
        assert bare.logits(IDS, audio=audio(1.0)).shape == (len(IDS), bare.vocabulary_size)
        with pytest.raises(RequestError, match="no vocabulary with Whisper's marks"):
            bare.transcribe(audio(1.0))


def test_each_window_is_encoded_once(one: LLM) -> None:
    one.forget()
    before = one.store.counters
    one.transcribe(audio(4.0), timestamps=False)
    after = one.store.counters
    one.transcribe(audio(4.0), timestamps=False, language="en")
    again = one.store.counters
    assert after.computed - before.computed == 2
    assert again.computed == after.computed
    assert again.asked > after.asked


def test_the_encoder_may_run_on_another_backend(folder: Path, one: LLM) -> None:
    right = one.transcribe(audio(3.0), temperature=0.0)
    other = next(name for name in BACKENDS if name != "cpu_ref")
    with load(folder, "cpu_ref", encoder_backend=other, num_threads=1, context=SHORT) as split:
        assert split.encoders["audio"].backend.name == other
        assert split.transcribe(audio(3.0), temperature=0.0).text == right.text


@pytest.mark.parametrize("samples", [1, 159, WINDOW * 160 - 1, WINDOW * 160, WINDOW * 160 + 1])
@pytest.mark.parametrize("level", [0.0, 0.3])
def test_the_shortest_and_the_fullest_sounds_are_transcribed(one: LLM, samples: int, level: float) -> None:
    sound = Audio(np.full(samples, level, np.float32), rate=16_000)
    found = one.transcribe(sound, temperature=0.0)
    assert all(each.end <= found.duration == samples / 16_000 for each in found)


def test_a_sound_that_is_damaged_is_an_error_at_once(one: LLM) -> None:
    for stream in (True, False):
        with pytest.raises(AudioError, match="is no WAV, FLAC, OGG or MP3 file"):
            one.transcribe(b"nothing that sounds", stream=stream)
    broken = np.zeros(1000, np.float32)
    broken[500] = np.nan
    with pytest.raises(AudioError, match="nan"):
        one.transcribe(Audio(broken, rate=16_000))
