from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from small_llama import write_small_llama
from small_sound import ID, KINDS, write_small_sound
from sounds import as_file, heard

from backbay import ModelFileError
from backbay_engine import LLM, Audio, AudioError, Image, RequestError, load
from backbay_engine.media.prompts import PromptParts

SOUND = heard(0.5)
INTEGERS = np.rint(SOUND * 2**15).astype(np.int16)
AUDIO = Audio(INTEGERS, rate=16_000)
DATA = base64.b64encode(as_file(INTEGERS)).decode()
PLACEHOLDER = {"ultravox": "<|audio|>", "voxtral": "[AUDIO]", "qwen2-audio": "<|AUDIO|>"}
PLACED = {"ultravox": (4, []), "voxtral": (13, [ID["[BEGIN_AUDIO]"]]), "qwen2-audio": (12, [])}
"""The rows of the sound, and the ids of its place before them."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    model, projector = write_small_sound(tmp_path_factory.mktemp("sound"), kind)
    with load(model, "cpu_ref", projector=projector, context=128, num_threads=1) as opened:
        yield opened


def test_a_sound_is_as_many_tokens_as_it_has_rows(llm: LLM, kind: str) -> None:
    rows, before = PLACED[kind]
    ids = llm.encode([[5, 6], AUDIO, [7]])
    assert ids[:2] + ids[-1:] == [5, 6, 7]
    assert ids[2 : 2 + len(before)] == before
    assert len(ids) == 3 + len(before) + rows
    assert llm.embed_audio(AUDIO).shape == (rows, 32)
    assert llm.prepare(AUDIO).tokens == rows
    assert llm.modalities == {"text", "audio"}
    assert "sound" in repr(llm)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio", "audio": AUDIO},
        {"type": "audio", "audio": as_file(INTEGERS)},
        {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64," + DATA}},
        AUDIO,
    ],
)
def test_content_parts_of_a_chat_hold_sounds(llm: LLM, kind: str, part: Any) -> None:
    said = f"Never {PLACEHOLDER[kind]}!"
    prompt = llm.chat_prompt([{"role": "user", "content": [part, {"type": "text", "text": said}]}])
    assert isinstance(prompt, PromptParts)
    ids = llm.encode(prompt)
    around = llm.encode([AUDIO])
    around = [token for token in around if token not in llm.tokenizer.around[0]]
    marks = ([ID["<|audio_bos|>"]], [ID["<|audio_eos|>"]]) if kind == "qwen2-audio" else ([], [])
    whole = [*marks[0], *around, *marks[1]]
    assert any(ids[at : at + len(whole)] == whole for at in range(len(ids)))
    assert said in llm.decode(ids)  # as text: users cannot write sounds
    assert ids.count(ID["<|AUDIO|>"]) + ids.count(ID["[AUDIO]"]) == (
        0 if kind == "ultravox" else len(around) - len(PLACED[kind][1])
    )
    answer = llm.chat([{"role": "user", "content": [part, "What?"]}], max_tokens=3)
    assert answer.finish_reason in ("length", "stop")


def test_a_template_that_knows_no_sound_gets_it_as_text(kind: str, tmp_path: Path) -> None:
    plain = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    model, projector = write_small_sound(tmp_path, kind, chat=plain)
    with load(model, "cpu_ref", projector=projector, context=128, num_threads=1) as llm:
        ids = llm.encode(llm.chat_prompt([{"role": "user", "content": [AUDIO, "What?"]}]))
        assert len(ids) > llm.prepare(AUDIO).tokens
        assert ids.count(ID["[BEGIN_AUDIO]"]) == (kind == "voxtral")
        assert ids.count(ID["<|audio_bos|>"]) == (kind == "qwen2-audio")


def test_a_prepared_sound_stands_for_it_with_other_values_too(llm: LLM) -> None:
    prepared = llm.prepare(AUDIO)
    assert not prepared.mel.flags.writeable
    assert (llm.logits([[5], prepared]) == llm.logits([[5], AUDIO])).all()
    other = prepared.replace(mel=np.zeros_like(prepared.mel))
    assert other.content != prepared.content
    assert (llm.embed_audio(other) != llm.embed_audio(prepared)).any()
    with pytest.raises(AudioError, match="mel must have the shape"):
        prepared.replace(mel=prepared.mel[..., 1:])
    with pytest.raises(AudioError, match="finite floats"):
        prepared.replace(mel=np.full_like(prepared.mel, np.nan))


def test_a_sound_prepared_for_another_model_is_refused(llm: LLM, kind: str, tmp_path: Path) -> None:
    other = KINDS[KINDS.index(kind) - 1]
    model, projector = write_small_sound(tmp_path, other)
    with load(model, "cpu_ref", projector=projector, context=128, num_threads=1) as stranger:
        prepared = stranger.prepare(AUDIO)
    with pytest.raises(AudioError, match=f"is prepared for {other}"):
        llm.generate(["Hear ", prepared], max_tokens=1)


def test_a_damaged_sound_ends_its_request_alone(llm: LLM) -> None:
    good = llm.submit(["Hear ", AUDIO], max_tokens=4)
    bad = llm.submit(["Hear ", Audio(as_file(INTEGERS)[:-100])], max_tokens=4)
    with pytest.raises(AudioError, match="is truncated"):
        bad.result(300)
    assert good.result(300).finish_reason in ("length", "stop")


def test_a_model_takes_only_what_it_has_an_encoder_for(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="sees no pictures: its encoder is"):
        llm.generate(["See ", Image(np.zeros((4, 4, 3), np.uint8))], max_tokens=1)
    with pytest.raises(RequestError, match="sees no pictures"):
        llm.embed_image(np.zeros((4, 4, 3), np.uint8))
    with load(write_small_llama(tmp_path / "text.gguf"), "cpu_ref", num_threads=1) as deaf:
        assert deaf.modalities == {"text"}
        with pytest.raises(RequestError, match=r"hears no sound: its file has no encoder; .*projector="):
            deaf.generate(["Hear ", AUDIO], max_tokens=1)


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, 'needs the key "data"'),
        ({"type": "input_audio", "input_audio": {"data": "?"}}, "is no base64"),
        ({"type": "audio"}, 'needs the key "audio"'),
        ({"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}}, "nothing is fetched"),
    ],
)
def test_content_parts_without_a_sound_are_refused(llm: LLM, part: Any, reason: str) -> None:
    with pytest.raises(AudioError, match=reason):
        llm.chat([{"role": "user", "content": [part]}], max_tokens=1)


def test_a_projector_that_does_not_fit_is_refused_when_the_model_is_opened(tmp_path: Path) -> None:
    files = {kind: write_small_sound(tmp_path / kind, kind) for kind in KINDS}
    with pytest.raises(ModelFileError, match=r"a projector for .*, of the architecture 'llama'"):
        load(files["voxtral"][0], "cpu_ref", projector=files["qwen2-audio"][1])
    plain = write_small_llama(tmp_path / "plain.gguf")
    with pytest.raises(ModelFileError, match=r"none of \[BEGIN_AUDIO\], \[AUDIO\]"):
        load(plain, "cpu_ref", projector=files["voxtral"][1])
    with pytest.raises(RequestError, match="image_tokens=4 is for models that see"):
        load(files["ultravox"][0], "cpu_ref", projector=files["ultravox"][1], image_tokens=4)
    unknown = gguf.GGUFWriter(tmp_path / "unknown.gguf", "clip")
    unknown.add_string("clip.projector_type", "ultravax")
    unknown.add_tensor("a.post_ln.weight", np.zeros(4, np.float32))
    unknown.write_header_to_file()
    unknown.write_kv_data_to_file()
    unknown.write_tensors_to_file()
    unknown.close()
    with pytest.raises(ModelFileError, match="qwen2a, ultravox, voxtral"):
        load(plain, "cpu_ref", projector=tmp_path / "unknown.gguf")
