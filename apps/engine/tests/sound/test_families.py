"""Encoders of sound, and the texts that hear by them, agree with transformers on every backend.

The files, the rows and the logits were made by `lab/engine/compare_sound --store`.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest
from model_scripts import nmse
from sounds import heard

import backbay
from backbay_engine import Audio, AudioError, load

DATA = Path(__file__).parents[1] / "data" / "sound"
FAMILIES = sorted(path.name.removesuffix("-mmproj.gguf.xz") for path in DATA.glob("*-mmproj.gguf.xz"))
BACKENDS = sorted(backbay.backends())
BEFORE, AFTER = [1, 20, 30], [40, 41]
RATE = 16_000


@pytest.fixture(scope="module", params=FAMILIES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The name of a family, its text model and its projector."""
    folder, paths = tmp_path_factory.mktemp("sound"), []
    for part in ("text", "mmproj"):
        paths.append(folder / f"{part}.gguf")
        paths[-1].write_bytes(lzma.decompress((DATA / f"{request.param}-{part}.gguf.xz").read_bytes()))
    return request.param, paths[0], paths[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_logits_are_those_of_transformers(files: tuple[str, Path, Path], backend: str) -> None:
    name, text, projector = files
    with (
        np.load(DATA / f"{name}.npz") as stored,
        load(text, backend, projector=projector, context=256, kv_dtype="f32", num_threads=1) as llm,
    ):
        sounds = sorted({key.rpartition(" ")[0] for key in stored.files})
        assert len(sounds) >= 4
        for key in sounds:
            _, samples, seed = key.split()
            audio = Audio(heard(int(samples) / RATE, seed=int(seed)), rate=RATE)
            rows = llm.embed_audio(audio)
            assert rows.shape == stored[f"{key} rows"].shape
            assert nmse(rows, stored[f"{key} rows"].astype(np.float32)) < 1e-5
            last = llm.logits([BEFORE, audio, AFTER])[-1]
            assert nmse(last, stored[f"{key} logits"]) < 1e-5


def test_a_sound_of_many_pieces_is_encoded_like_its_pieces(files: tuple[str, Path, Path]) -> None:
    name, text, projector = files
    piece = 52 * 320
    sound = heard(10 * piece / RATE)
    with load(text, "cpu_ref", projector=projector, context=256, num_threads=1) as llm:
        if name == "qwen2-audio":
            with pytest.raises(AudioError, match=r"of 10.40 seconds; qwen2-audio takes 1.04 seconds"):
                llm.prepare(Audio(sound, rate=RATE))
            return
        whole = llm.prepare(Audio(sound, rate=RATE))
        rows = llm.embed_audio(whole)
        third = llm.prepare(Audio(sound[2 * piece : 3 * piece], rate=RATE))
        mel = whole.mel[2:3] if name == "voxtral" else whole.mel[:, 2 * 104 : 3 * 104]
        count = third.tokens
        np.testing.assert_allclose(
            llm.embed_audio(third.replace(mel=mel)), rows[2 * count : 3 * count], atol=1e-5
        )


@pytest.mark.parametrize("samples", [1, 159, 160, 320, 321, 52 * 320 - 1, 52 * 320])
def test_the_shortest_and_the_fullest_sounds_are_right_or_refused(
    files: tuple[str, Path, Path], samples: int
) -> None:
    name, text, projector = files
    audio = Audio(np.full(samples, 0.1, np.float32), rate=RATE)
    with load(text, "cpu_ref", projector=projector, context=256, num_threads=1) as llm:
        if name == "qwen2-audio" and samples <= 320:
            with pytest.raises(AudioError, match="is too short: qwen2-audio makes no row of it"):
                llm.embed_audio(audio)
        else:
            rows = llm.embed_audio(audio)
            assert len(rows) == llm.prepare(audio).tokens >= 1
            assert np.isfinite(rows).all()
