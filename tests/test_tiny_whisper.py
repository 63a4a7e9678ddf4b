"""The model in examples/models that hears writes down what is said, and the same on every backend."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tiny_whisper import speech
from tiny_whisper.speech import RATE, SAID, WORDS, Phrase, noisy, read_wav, speak, word_errors, write_wav
from tiny_whisper.vocabulary import NO_TIMESTAMPS, Words, make_tokenizer
from tiny_whisper.windows import ROWS_A_SECOND, draw_window
from train_tiny_whisper import SHIPPED

import backbay
from backbay_engine import Audio, Transcript, load

SOUND = SHIPPED.with_name("spoken.wav")
SAMPLES = 5 * RATE


@cache
def transcripts(backend: str) -> list[Transcript]:
    """Of the shipped sound, and of it with noise."""
    sound = read_wav(SOUND)
    worn = noisy(sound.astype(np.float32) / 32768, 15, np.random.default_rng(0))
    with load(SHIPPED, backend=backend, num_threads=1) as whisper:
        return [whisper.transcribe(Audio(each, rate=RATE), temperature=0) for each in (sound, worn)]


@pytest.mark.parametrize("backend", sorted(backbay.backends()))
def test_the_shipped_sound_is_heard_right_and_alike(backend: str) -> None:
    plain, worn = transcripts(backend)
    assert [segment.text.strip() for segment in plain] == list(SAID)
    assert word_errors(" ".join(SAID).split(), worn.text.split()) <= 1
    assert [each.text for each in (plain, worn)] == [each.text for each in transcripts("cpu_ref")]


def test_segments_lie_where_their_phrases_sound() -> None:
    (plain, _), sound = transcripts("cpu_ref"), read_wav(SOUND)
    (loud,) = np.nonzero(np.abs(sound.astype(int)) > speech.QUIET)
    gaps = np.nonzero(np.diff(loud) > RATE // 2)[0]
    begins, ends = [loud[0], *loud[gaps + 1]], [*loud[gaps], loud[-1]]
    np.testing.assert_allclose([each.start for each in plain], np.array(begins) / RATE, atol=0.35)
    np.testing.assert_allclose([each.end for each in plain], np.array(ends) / RATE, atol=0.35)


def phrase(words: str, seconds: float) -> Phrase:
    return Phrase(tuple(words.split()), np.full(int(seconds * RATE), 8000, np.int16))


def test_windows_hold_whole_phrases_but_for_the_last_that_is_cut() -> None:
    spoken = [phrase("red dog", 1.0), phrase("zero one two", 2.4)]
    drawn = [draw_window(Random(seed), spoken, SAMPLES, cut=seed % 2 > 0) for seed in range(200)]
    ends = [[end for _, _, end in window.heard] for window in drawn]
    assert any(each[-1:] == [None] for each in ends[1::2])
    assert all(None not in each for each in ends[::2])
    assert all(None not in each[:-1] for each in ends)
    assert 0 < sum(not each for each in ends) < 30
    for window in drawn:
        for words, begin, end in window.heard:
            assert end is None or end - begin == pytest.approx(
                ROWS_A_SECOND * (1.0, 2.4)[len(words) > 2], abs=2
            )


def test_a_window_becomes_times_and_words_and_rows_their_names() -> None:
    words = Words(make_tokenizer(250))
    window = draw_window(Random(0), [phrase("red dog", 1.0)], SAMPLES, cut=False)
    ids, targets = words.row(window, times=True)
    times = [words.tokenizer.id_to_token(id) for id in ids[1:5]]
    begin, end = window.heard[0][1:]
    assert end is not None
    assert times == [f"<|{begin / 50:.2f}|>", "Ġred", "Ġdog", f"<|{end / 50:.2f}|>"]
    assert targets == [*ids[1:], words.end]
    plain, learned = words.row(window, times=False)
    assert plain[:3] == [words.start, words.tokenizer.token_to_id(NO_TIMESTAMPS), words.ids["red"][0]]
    assert learned[0] == -100
    named = window.named(dict.fromkeys(WORDS, 1.0) | {"dog": 3.0})[begin:end]
    assert list(dict.fromkeys(named)) == [1 + WORDS.index("red"), 1 + WORDS.index("dog")]
    assert (named == named[0]).mean() == pytest.approx(0.25, abs=0.03)


def test_each_word_is_a_token() -> None:
    assert all(len(ids) == 1 for ids in Words(make_tokenizer(250)).ids.values())


@pytest.mark.parametrize(
    ("heard", "errors"), [("a b c", 0), ("a c", 1), ("a x c", 1), ("z a b c", 1), ("", 3), ("c b a", 2)]
)
def test_word_errors_are_the_fewest_changes(heard: str, errors: int) -> None:
    assert word_errors(["a", "b", "c"], heard.split()) == errors


def test_noise_is_as_loud_as_asked() -> None:
    sound = np.sin(np.arange(RATE, dtype=np.float32))
    noise = noisy(sound, 10, np.random.default_rng(0)) - sound
    assert 10 * np.log10((sound**2).mean() / (noise**2).mean()) == pytest.approx(10, abs=0.5)


def test_a_wav_file_keeps_its_samples(tmp_path: Path) -> None:
    sound = np.arange(-300, 300, dtype=np.int16)
    write_wav(tmp_path / "sound.wav", sound)
    np.testing.assert_array_equal(read_wav(tmp_path / "sound.wav"), sound)


def test_without_espeak_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="apt install espeak-ng"):
        speak("red", speech.PLAIN)


def test_training_steps_are_those_of_the_optimizer_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    from tiny_whisper.muon import Muon

    for shape in ((96, 384), (384, 96)):
        start, steps = torch.randn(shape), [torch.randn(shape) for _ in range(3)]
        ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
        right = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        for optimizer, weight in ((Muon([ours], 1e-2), ours), (right, theirs)):
            for step in steps:
                weight.grad = step.clone()
                optimizer.step()
        assert (ours - theirs).norm() < 0.02 * (theirs - start).norm()
