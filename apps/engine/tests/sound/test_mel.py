from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sounds import heard

from backbay_engine.sound.mel import log_mel

# Made by lab/engine/compare_sound --write, from transformers' WhisperFeatureExtractor: each seventh frame.
REFERENCES = np.load(Path(__file__).parents[1] / "data" / "sound" / "mel.npz")


@pytest.mark.parametrize("name", REFERENCES.files)
def test_spectrograms_are_those_of_transformers(name: str) -> None:
    kind, seconds, bins, _ = name.split()
    ours, right = log_mel(heard(float(seconds), kind), int(bins))[:, ::7], REFERENCES[name]
    assert ours.shape == right.shape
    assert ours.dtype == np.float32
    assert ((ours - right) ** 2).sum() <= 1e-9 * (right**2).sum()


def test_a_frame_is_each_whole_hop() -> None:
    for count in (160, 319, 320, 16_000):
        assert log_mel(heard(1)[:count], 80).shape == (80, count // 160)
    assert log_mel(heard(1)[:159], 80).shape == (80, 0)


def test_frames_are_the_same_however_many_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = heard(2.5)
    whole = log_mel(sound, 80)
    monkeypatch.setattr("backbay_engine.sound.mel.TOGETHER", 7)
    np.testing.assert_allclose(log_mel(sound, 80), whole, atol=1e-6)
