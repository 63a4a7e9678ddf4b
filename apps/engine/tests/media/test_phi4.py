"""Phi-4-multimodal, which sees and hears, and brings adapters for either: it agrees with transformers on every backend.

The folder, the rows and the logits were made by `lab/engine/compare_phi4.py --store`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import unpacked_folder
from model_scripts import nmse
from published_phi4 import publish
from sounds import heard

import backbay
from backbay import ModelFileError
from backbay.discovery import open_model
from backbay_engine import LLM, Audio, AudioError, Image, ImageError, RequestError, Rows, convert, load
from backbay_engine.images.preparations.crops import CropsPreparation

DATA = Path(__file__).parents[1] / "data" / "phi4"
BACKENDS = sorted(backbay.backends())
SOUNDS = {"short": (0.5, 1), "longer": (3.3333, 2)}
PICTURES = ("wide", "tall")
BEFORE, BETWEEN, AFTER = [5, 20, 30], [40], [41, 42]
CLOSE = 1e-5
PUBLISHED = CropsPreparation(size=448, patch=14, crops=36, mean=(0.5,) * 3, std=(0.5,) * 3)
Stored = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked_folder("phi4", tmp_path_factory.mktemp("phi4"), DATA)


@pytest.fixture(scope="module")
def published(folder: Path) -> Path:
    """The same model in Microsoft's layout."""
    return publish(folder, folder.parent / "published")


@pytest.fixture(scope="module")
def known() -> Stored:
    with np.load(DATA / "phi4.npz") as stored:
        return {key: stored[key].astype(np.float32) if "rgb" not in key else stored[key] for key in stored}


def opened(folder: Path, backend: str = "cpu_ref", **how: Any) -> LLM:
    return load(folder, backend, context=256, kv_dtype="f32", num_threads=1, **how)


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with opened(folder, adapters={"own": folder / "own-lora"}) as made:
        yield made


def given(known: Stored, name: str) -> Image | Audio:
    if name in PICTURES:
        return Image(known[f"{name} rgb"])
    seconds, seed = SOUNDS[name]
    return Audio(heard(seconds, seed=seed), rate=16_000)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_and_logits_are_those_of_transformers(folder: Path, known: Stored, backend: str) -> None:
    with opened(folder, backend, adapters={"own": folder / "own-lora"}) as llm:
        assert llm.modalities == {"text", "image", "audio"}
        assert nmse(llm.logits([*range(5, 60)])[-1], known["text logits"]) < CLOSE
        for name in (*PICTURES, *SOUNDS):
            prepared = llm.prepare(given(known, name))
            rows = (llm.embed_image if name in PICTURES else llm.embed_audio)(prepared)
            assert nmse(rows, known[f"{name} rows"]) < CLOSE
            if name in SOUNDS:
                beside = llm.embed_audio(prepared.replace(beside_picture=True))
                assert nmse(beside, known[f"{name} beside"]) < CLOSE
            default = "vision" if name in PICTURES else "speech"
            for adapter, choice in ((default, None), ("None", {default: 0.0}), ("own", "own")):
                last = llm.logits([BEFORE, prepared, BETWEEN], adapter=choice)[-1]
                assert nmse(last, known[f"{name} {adapter} logits"]) < CLOSE, adapter
        prompt = [BEFORE, given(known, "wide"), BETWEEN, given(known, "short"), AFTER]
        assert nmse(llm.logits(prompt)[-1], known["both logits"]) < CLOSE


def test_the_published_layout_has_the_rows_and_logits_of_transformers(published: Path, known: Stored) -> None:
    with opened(published) as llm:
        assert llm.modalities == {"text", "image", "audio"}
        assert [*llm.adapters] == ["vision", "speech"]
        assert nmse(llm.logits([*range(5, 60)])[-1], known["text logits"]) < CLOSE
        for name in (*PICTURES, *SOUNDS):
            prepared = llm.prepare(given(known, name))
            rows = (llm.embed_image if name in PICTURES else llm.embed_audio)(prepared)
            assert nmse(rows, known[f"{name} rows"]) < CLOSE
            default = "vision" if name in PICTURES else "speech"
            for adapter, choice in ((default, None), ("None", {default: 0.0})):
                last = llm.logits([BEFORE, prepared, BETWEEN], adapter=choice)[-1]
                assert nmse(last, known[f"{name} {adapter} logits"]) < CLOSE, adapter
        said = [{"role": "user", "content": [given(known, "short"), "What?"]}]
        assert llm.tokenizer is not None
        ids = llm.encode(llm.chat_prompt(said))
        assert ids.count(llm.tokenizer.token_id("<|audio|>") or -1) == len(known["short rows"])


def test_both_layouts_are_converted_to_the_same_file(folder: Path, published: Path, tmp_path: Path) -> None:
    for layout in (folder, published):
        convert(layout, tmp_path / f"{layout.name}.gguf", "f32")
    with open_model(tmp_path / "phi4.gguf") as ours, open_model(tmp_path / "published.gguf") as theirs:
        assert {*ours.tensors} == {*theirs.tensors}
        assert all(np.array_equal(ours.data(name), theirs.data(name)) for name in ours.tensors)
        for key in ours.metadata:
            if not key.startswith(("general.", "tokenizer.", "phi4mm.vision.image_")):  # colours: by default
                assert np.array_equal(ours.metadata[key], theirs.metadata[key]), key
        assert "<|image|>" in theirs.metadata["tokenizer.ggml.tokens"]


def test_folders_of_adapters_precede_those_among_the_tensors(
    folder: Path, published: Path, known: Stored, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(published, tmp_path / "published"))
    shutil.copytree(folder / "own-lora", copy / "speech-lora")
    with opened(copy) as llm:
        last = llm.logits([BEFORE, given(known, "short"), BETWEEN])[-1]
        assert nmse(last, known["short own logits"]) < CLOSE


@pytest.mark.fault(
    "factors of an adapter that lack a side, or have another rank than stated", "ModelFileError"
)
def test_factors_among_the_tensors_that_do_not_fit_are_refused(published: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(published, tmp_path / "published"))
    config = json.loads((copy / "config.json").read_text())
    config["speech_lora"]["r"] = 7
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="the rank 3 of the factors of"):
        opened(copy)
    config["audio_processor"]["config"]["causal"] = False
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match="causal"):
        opened(copy)


def test_a_sound_beside_a_picture_has_other_rows_and_both_are_kept(llm: LLM, known: Stored) -> None:
    picture, sound = given(known, "wide"), given(known, "short")
    llm.forget()
    before = llm.store.counters.computed
    for prompt in ([sound, [7]], [picture, sound, [7]], [sound, [8]], [picture, sound, [8]]):
        llm.generate(prompt, max_tokens=1)
    assert llm.store.counters.computed == before + 3


def test_requests_with_different_adapters_share_steps_and_no_beginnings(llm: LLM, known: Stored) -> None:
    prompts = [[given(known, name), "What?"] for name in ("wide", "short")] + ["What?"]
    alone = [llm.generate(prompt, max_tokens=5, temperature=0, reuse=False).tokens for prompt in prompts]
    handles = [llm.submit(prompt, max_tokens=5, temperature=0) for prompt in prompts]
    assert [handle.result().tokens for handle in handles] == alone
    llm.forget()
    sound = [given(known, "short"), "What?"]
    llm.generate(sound, max_tokens=2, adapter="own")
    assert llm.generate(sound, max_tokens=2).timings.reused_tokens == 0
    assert llm.generate([*sound, "!"], max_tokens=2).timings.reused_tokens > 0


def test_rows_of_a_sound_ask_for_its_adapter(llm: LLM, known: Stored) -> None:
    prepared = llm.prepare(given(known, "short"))
    rows = Rows(llm.embed_audio(prepared), of=prepared)
    np.testing.assert_array_equal(llm.logits([rows, [7]]), llm.logits([prepared, [7]]))


def test_an_adapter_under_the_models_own_name_replaces_its_own(folder: Path, known: Stored) -> None:
    prompt = [BEFORE, given(known, "short"), BETWEEN]
    with opened(folder, adapters={"speech": folder / "own-lora"}) as llm:
        assert nmse(llm.logits(prompt)[-1], known["short own logits"]) < CLOSE
        llm.remove_adapter("speech")
        assert nmse(llm.logits(prompt)[-1], known["short None logits"]) < CLOSE
        assert [*llm.adapters] == ["vision"]


def test_a_long_sound_is_encoded_in_pieces_and_takes_no_more_memory(folder: Path) -> None:
    samples = heard(45)
    with opened(folder) as llm:
        reserved = llm.memory().total()
        lengths = None, 4000 * 160 + 240
        whole, piece = (llm.prepare(Audio(samples[:count], rate=16_000)) for count in lengths)
        assert (whole.tokens, piece.tokens) == (563, 500)
        np.testing.assert_allclose(llm.embed_audio(whole)[:500], llm.embed_audio(piece), atol=1e-5)
        assert llm.memory().total() <= reserved


@pytest.mark.parametrize(
    ("size", "grid", "tokens"),
    [
        ((448, 448), (1, 1), 545),
        ((300, 700), (1, 2), 735),
        ((1000, 1999), (3, 5), 3513),
        ((4000, 3000), (4, 3), 3409),  # of more than 36 crops
    ],
)
def test_pictures_of_the_published_model_have_the_rows_that_the_processor_of_transformers_counts(
    size: tuple[int, int], grid: tuple[int, int], tokens: int
) -> None:
    plan = PUBLISHED.plan(size)
    assert (plan.grid, plan.tokens) == (grid, tokens)


def test_fewer_rows_are_made_of_fewer_crops(folder: Path) -> None:
    with opened(folder, image_tokens=30) as llm:
        assert llm.prepare(Image(np.zeros((900, 100, 3), np.uint8))).tokens <= 30
    with pytest.raises(RequestError, match="image_tokens=12 is too few: phi4 makes 13 rows"):
        opened(folder, image_tokens=12)
    with pytest.raises(ImageError, match="too thin"):
        PUBLISHED.plan((390, 2))


def test_a_chat_marks_pictures_and_sounds_in_their_order(llm: LLM, known: Stored) -> None:
    picture, sound = given(known, "wide"), given(known, "short")
    image, audio = (llm.tokenizer.token_id(f"<|{kind}|>") for kind in ("image", "audio"))  # type: ignore[union-attr]
    said = [{"role": "user", "content": [sound, "Hear <|image|> this, see ", picture, "?"]}]
    ids = llm.encode(llm.chat_prompt(said))
    rows = len(known["short rows"]), len(known["wide rows"])
    assert (ids.count(audio), ids.count(image)) == rows
    assert ids.index(audio) < ids.index(image)


def test_a_converted_file_has_text_and_encoders_and_takes_the_adapters_that_are_named(
    folder: Path, known: Stored, tmp_path: Path
) -> None:
    convert(folder, tmp_path / "phi4.gguf", "f32")
    prompt = [BEFORE, given(known, "short"), BETWEEN]
    with opened(tmp_path / "phi4.gguf") as llm:
        assert nmse(llm.logits(prompt)[-1], known["short None logits"]) < CLOSE
        llm.add_adapter("speech", folder / "speech-lora")
        assert nmse(llm.logits(prompt)[-1], known["short speech logits"]) < CLOSE


@pytest.mark.fault("a sound without a row, or a picture where a sound is wanted", "RequestError")
def test_what_makes_no_row_is_refused(llm: LLM, known: Stored) -> None:
    with pytest.raises(AudioError, match="too short"):
        llm.prepare(Audio(np.zeros(399, np.float32), rate=16_000))
    with pytest.raises(RequestError, match="a sound is wanted here, got a picture"):
        llm.embed_audio(given(known, "wide"))


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("audio_config", "chunk_size", 18),
        ("audio_config", "bias_symmetric", True),
        ("vision_config", "feature_layer", -9),
        ("vision_config", "crop_size", 70),
    ],
)
@pytest.mark.fault("a configuration that the published model does not have", "ModelFileError")
def test_settings_that_are_not_known_are_refused(
    folder: Path, tmp_path: Path, section: str, name: str, value: Any
) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "phi4"))
    config = json.loads((copy / "config.json").read_text())
    config[section][name] = value
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelFileError, match=name):
        opened(copy)
