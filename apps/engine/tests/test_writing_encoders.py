"""Models that see and hear, written from their folders: the files of llama.cpp's converter, and transformers' rows.

The folders, the files and the rows were made by `lab/engine/compare_vision --folders` and `lab/engine/compare_sound --store`.
"""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from checkpoint_folders import safetensors
from model_files import KINDS, unpacked_folder
from model_scripts import nmse
from published_phi4 import stored_arrays
from vision_files import opened, pictures

from backbay import CancelledError, DType, ModelFileError, OptionError
from backbay.cli import main
from backbay.discovery import open_model
from backbay.gguf import ModelFile, ValueType
from backbay_engine import Image, convert, load

FOLDERS = KINDS.parent / "folders"
SEEING = sorted(path.name.removesuffix(".hf.xz") for path in FOLDERS.glob("*.hf.xz"))
SOUND = KINDS.parent / "sound"
HEARING = sorted(path.name.removesuffix(".hf.xz") for path in SOUND.glob("*.hf.xz"))
OURS_ALONE = {"mistral3": {"v.token_embd.img_break"}}  # llama.cpp asks for it, and its converter forgets it
HALF = {"gemma3": {"mm.input_projection.weight"}}  # in llama.cpp's file, even if f32 is asked for
WRONG = ("clip.vision.attention.layer_norm_epsilon", "clip.vision.feed_forward_length")
"""Keys that llama.cpp's converter takes from the text: the former always, the latter for Qwen 2 VL."""
OF_SCRIPTS = ("llava", "llava16", "minicpmv")  # whose files other scripts made, with other names
RENAMED = {"llama4": (".attn_post_norm.", ".ln2.")}  # llama.cpp's converter has the name of another norm


def folder_of(name: str, path: Path) -> Path:
    return unpacked_folder(name, path, SOUND if name in HEARING else FOLDERS)


def unpacked(packed: Path, folder: Path) -> Path:
    path = folder / f"stored-{packed.stem}"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    return path


def encoder_path(name: str, path: Path) -> Path:
    """The file with the encoder that `convert` writes in f32."""
    convert(folder_of(name, path), path / "own.gguf", "f32")
    return path / ("own.gguf" if name == "mllama" else "mmproj-own.gguf")


def keys(file: ModelFile, *without: str) -> dict[str, object]:
    found = {}
    for key in file.metadata:
        value = file.metadata[key]
        if not key.startswith(("general.", "tokenizer.", *without)):
            plain = value.tolist() if isinstance(value, np.ndarray) else value
            found[key] = float(np.float32(plain)) if isinstance(plain, float) else plain
    return found


@pytest.mark.parametrize("name", SEEING)
def test_an_encoder_that_is_written_gives_the_rows_of_transformers(tmp_path, name):
    encoder = opened(encoder_path(name, tmp_path))
    try:
        known = pictures(name, FOLDERS)
        found = encoder.embed([encoder.family.prepare(rgb) for rgb, _ in known.values()])
        for rows, (_, wanted) in zip(found, known.values(), strict=True):
            assert rows.shape == wanted.shape
            assert nmse(rows, wanted) < 1e-3  # of our own pixels
    finally:
        encoder.close()


@pytest.mark.parametrize("name", [name for name in SEEING if name not in OF_SCRIPTS])
def test_an_encoder_has_the_tensors_and_keys_of_the_converter_of_llama_cpp(tmp_path, name):
    theirs = open_model(unpacked(FOLDERS / f"{name}.gguf.xz", tmp_path))
    with open_model(encoder_path(name, tmp_path)) as ours, theirs:
        own = {each for each in ours.tensors if each.startswith(("v.", "mm."))} - OURS_ALONE.get(name, set())
        names = {each.replace(*RENAMED.get(name, ("", ""))): each for each in theirs.tensors}
        assert own == {*names}
        for each in own - HALF.get(name, set()):
            info, wanted = ours.tensors[each], theirs.tensors[names[each]]
            assert (info.shape, info.dtype) == (wanted.shape, wanted.dtype), each
            assert np.array_equal(ours.data(each), theirs.data(names[each])), each
        assert keys(theirs, *WRONG).items() <= keys(ours).items()


def test_the_encoder_of_qwen2_vl_has_its_own_hidden_width(tmp_path):
    with open_model(encoder_path("qwen2vl", tmp_path)) as ours:
        assert (
            ours.metadata["clip.vision.feed_forward_length"] == ours.tensors["v.blk.0.ffn_up.weight"].shape[1]
        )


@pytest.mark.parametrize("name", HEARING)
def test_sound_has_the_files_of_the_converter_of_llama_cpp(tmp_path, name):
    convert(folder_of(name, tmp_path), tmp_path / "own.gguf", "f32")
    pairs = {"mmproj": "mmproj-own.gguf", "text": "own.gguf"}
    if name == "ultravox":  # its text lies in another folder
        assert not (tmp_path / pairs.pop("text")).exists()
    for part, own in pairs.items():
        path = unpacked(SOUND / f"{name}-{part}.gguf.xz", tmp_path)
        with open_model(path) as theirs, open_model(tmp_path / own) as ours:
            assert {*ours.tensors} == {*theirs.tensors}
            for each, wanted in theirs.tensors.items():
                assert (ours.tensors[each].shape, ours.tensors[each].dtype) == (wanted.shape, wanted.dtype)
                assert np.array_equal(ours.data(each), theirs.data(each)), each
            assert keys(theirs).items() <= keys(ours).items()


def test_the_version_of_minicpm_v_has_the_type_that_llama_cpp_reads(tmp_path):
    with open_model(encoder_path("minicpmv", tmp_path)) as ours:
        assert ours.metadata.value_type("clip.minicpmv_version") is ValueType.INT32
        assert ours.metadata["clip.minicpmv_version"] == 3
        assert ours.tensors["resampler.pos_embed_k"].shape == (48, 64)


def test_matrices_of_experts_are_read_as_published_and_as_newer_versions_of_transformers_save_them(tmp_path):
    folder = folder_of("qwen3vlmoe", tmp_path)
    turned = Path(shutil.copytree(folder, tmp_path / "turned"))
    arrays = stored_arrays(folder / "model.safetensors")
    experts = {name for name, array in arrays.items() if ".experts." in name and array.ndim == 3}
    assert experts
    others = {name: each.swapaxes(1, 2) if name in experts else each for name, each in arrays.items()}
    (turned / "model.safetensors").write_bytes(safetensors(others))
    with open_model(folder) as published, open_model(turned) as saved:
        for name, info in published.tensors.items():
            assert saved.tensors[name].shape == info.shape
            assert np.array_equal(published.data(name), saved.data(name)), name


def test_a_folder_of_llama_3_2_vision_sees_as_the_file_that_is_written_of_it(tmp_path):
    folder = folder_of("mllama", tmp_path)
    convert(folder, tmp_path / "own.gguf", "f32")
    rgb = next(iter(pictures("mllama", FOLDERS).values()))[0]
    found = []
    for model in (folder, tmp_path / "own.gguf"):
        with load(model, "cpu_ref", context=64) as llm:
            assert llm.modalities == {"text", "image"}
            found.append(llm.logits([[1, 40], Image(rgb), [50, 60]]))
    assert np.array_equal(*found)


def test_the_command_writes_a_quantized_text_and_a_projector_of_f16_beside_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder_of("qwen25vl", tmp_path)
    assert main(["convert", "qwen25vl", "--dtype", "q8_0"]) == 0
    said = capsys.readouterr().out
    assert "\nqwen25vl-q8_0.gguf: " in said
    assert "\nmmproj-qwen25vl-f16.gguf: " in said
    with open_model(tmp_path / "qwen25vl-q8_0.gguf") as text:
        assert DType.Q5_0 not in {info.dtype for info in text.tensors.values()}
        assert {info.dtype for info in text.tensors.values()} > {DType.F32}
        assert not any(name.startswith(("v.", "mm.")) for name in text.tensors)
    with open_model(tmp_path / "mmproj-qwen25vl-f16.gguf") as projector:
        assert {info.dtype for info in projector.tensors.values()} == {DType.F16, DType.F32}
        assert projector.tensors["v.patch_embd.weight.1"].dtype is DType.F16
        assert projector.metadata["general.type"] == "mmproj"
    with load("qwen25vl-q8_0.gguf", "cpu_ref", projector="mmproj-qwen25vl-f16.gguf", context=64) as llm:
        assert llm.modalities == {"text", "image"}


def test_the_projector_goes_where_it_is_told_and_both_files_are_named(tmp_path, capsys):
    folder = folder_of("gemma3", tmp_path)
    text, projector = tmp_path / "a.gguf", tmp_path / "eye.gguf"
    command = ["convert", str(folder), "-o", str(text), "--mmproj", str(projector)]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["projector"] == {"file": str(projector), "nbytes": projector.stat().st_size}
    assert found["nbytes"] == text.stat().st_size
    assert main(command[:4]) == 2  # a.gguf exists
    text.unlink()
    assert main(command) == 2
    assert "eye.gguf exists; take another name" in capsys.readouterr().err
    assert not text.exists()


def test_a_projector_of_a_model_without_an_encoder_and_one_file_for_both_are_refused(tmp_path):
    text = unpacked_folder("gemma2", tmp_path)
    with pytest.raises(OptionError, match="has no encoder that would be written to"):
        convert(text, tmp_path / "a.gguf", projector=tmp_path / "b.gguf")
    seeing = folder_of("llava", tmp_path)
    with pytest.raises(OptionError, match="cannot hold both text and projector"):
        convert(seeing, tmp_path / "a.gguf", projector=tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf"))


def changed(folder: Path, *, drop: str = "", config: dict[str, object] | None = None) -> Path:
    """A folder without a tensor, or with other values in its configuration."""
    file, described = folder / "model.safetensors", folder / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | (config or {})))
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    rows = {name: row for name, row in json.loads(raw[8:end]).items() if name not in ("__metadata__", drop)}
    arrays = {
        name: np.frombuffer(raw[end:], np.float32, -1 if not row["shape"] else int(np.prod(row["shape"])), row["data_offsets"][0])
        .reshape(row["shape"])
        for name, row in rows.items()
    }  # fmt: skip
    file.write_bytes(safetensors(arrays))
    return folder


@pytest.mark.fault("a folder lacks a tensor", "ModelFileError naming it; no file is written")
@pytest.mark.parametrize(
    ("name", "tensor", "named"),
    [
        ("llava", "vision_tower.vision_model.encoder.layers.1.mlp.fc2.weight", "v.blk.1.ffn_down.weight"),
        ("llava", "language_model.model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight"),
    ],
)
def test_a_missing_tensor_is_named_before_anything_is_written(tmp_path, name, tensor, named):
    folder = folder_of(name, tmp_path)
    raw = (folder / "model.safetensors").read_bytes()
    names = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    (full,) = [each for each in names if each.endswith(tensor)]
    with pytest.raises(ModelFileError, match=named):
        convert(changed(folder, drop=full), tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*a.gguf*"))
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("llava", {"vision_feature_select_strategy": "full"}, "expected default in 'vision_feature_select"),
        ("llava", {"vision_feature_layer": -9}, "an output of the 4 blocks in 'vision_feature_layer'"),
        ("llava", {"vision_config": {"model_type": "siglip_vision_model"}}, "clip_vision_model or pixtral"),
        ("llava", {"text_config": {"model_type": "phi"}}, "llama or mistral or qwen2 in 'model_type'"),
        ("minicpmv", {"version": 2.5}, "2.6 or 4.5 in 'version'"),
        ("minicpmv", {"drop_vision_last_layer": True}, "false in 'drop_vision_last_layer'"),
        ("minicpmv46", {"merger_times": 2}, "1 in 'merger_times'"),
        ("llama4", {"vision_config": {"pixel_shuffle_ratio": 0}}, "a number from 1/64 to 1 in"),
        ("gemma3", {"architectures": ["FuyuForCausalLM"]}, "a class of transformers that can be read"),
    ],
)
def test_what_is_not_converted_is_refused_by_its_name(tmp_path, name, config, message):
    with pytest.raises(ModelFileError, match=message):
        convert(changed(folder_of(name, tmp_path), config=config), tmp_path / "a.gguf")
    assert not list(tmp_path.glob("*.gguf"))


def test_blocks_of_the_encoder_that_are_not_at_equal_distances_are_refused(tmp_path):
    folder = folder_of("qwen25vl", tmp_path)
    eye = json.loads((folder / "config.json").read_text())["vision_config"]
    with pytest.raises(ModelFileError, match="blocks at equal distances in 'fullatt_block_indexes'"):
        convert(
            changed(folder, config={"vision_config": eye | {"fullatt_block_indexes": [0, 3]}}),
            tmp_path / "a.gguf",
        )


def test_a_folder_of_an_encoder_alone_says_where_its_text_is(tmp_path):
    with pytest.raises(ModelFileError, match="a model with a text, which stands in a folder of its own"):
        open_model(folder_of("ultravox", tmp_path))


def test_values_that_a_published_configuration_leaves_out_are_those_of_transformers(tmp_path):
    folder = folder_of("llava", tmp_path)
    text = json.loads((folder / "config.json").read_text())["text_config"]
    for name in ("rms_norm_eps", "num_hidden_layers"):
        text.pop(name, None)
    with open_model(changed(folder, config={"text_config": text})) as model:
        assert model.metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-6
        assert model.metadata["llama.block_count"] == 32


@pytest.mark.fault("a conversion is cancelled in its midst", "CancelledError; neither file is left")
def test_a_cancelled_conversion_leaves_neither_file(tmp_path):
    folder, cancel, seen = (
        folder_of("smolvlm" if "smolvlm" in SEEING else "idefics3", tmp_path),
        Event(),
        list[float](),
    )

    def watch(done: float) -> None:
        seen.append(done)
        if done > 0.9:  # in the projector, the second file
            cancel.set()

    with pytest.raises(CancelledError):
        convert(folder, tmp_path / "a.gguf", progress=watch, cancel=cancel)
    assert seen == sorted(seen)
    assert not list(tmp_path.glob("*a.gguf*"))
    assert not list(tmp_path.glob(".*"))
