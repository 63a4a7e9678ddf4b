"""Opening the file of an encoder: which file, which family, and files that do not fit."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from model_files import stored
from vision_files import opened, unpacked

import backbay.gguf
from backbay import ModelFileError
from backbay_engine import tokenizer_from_gguf
from backbay_engine.media.encoder import MediaEncoder
from backbay_engine.media.encoder_file import encoder_family, encoder_files, text_file

TINY = Path(__file__).parents[4] / "examples" / "models" / "backbay-tiny-f16.gguf"


def changed(path, *, tensors=None, metadata=None, architecture=None):
    """The file with other tensors and metadata; None removes an entry."""
    reader, tensors, metadata = gguf.GGUFReader(path), tensors or {}, metadata or {}
    target = path.with_name("changed.gguf")
    writer = gguf.GGUFWriter(target, architecture or reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")) and key not in metadata:
            of = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=of)
    for key, value in metadata.items():
        if value is not None:
            add = {list: writer.add_array, str: writer.add_string, float: writer.add_float32}
            add.get(type(value), writer.add_uint32)(key, value)
    held = {each.name: np.array(each.data) for each in reader.tensors}
    for name, array in {**held, **tensors}.items():
        if array is not None:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def family(path):
    file = next(encoder_files(path, path))
    return encoder_family(file)


@pytest.fixture
def gemma(tmp_path):
    return unpacked("gemma3-projector", tmp_path)


@pytest.fixture
def llava(tmp_path):
    return unpacked("llava16-new", tmp_path)


def test_a_model_of_text_alone_sees_nothing():
    assert not [*encoder_files(stored("llama-llama3"))]


def test_one_file_holds_the_encoder_or_the_projector_does(tmp_path):
    single = unpacked("gemma3-single", tmp_path)
    assert encoder_family(next(encoder_files(single))).name == "gemma3"
    assert not text_file(single).tensors
    llava = unpacked("llava-old", tmp_path)
    assert encoder_family(next(encoder_files(single, llava))).name == "llava"


@pytest.mark.fault(
    "the projector is that of another model", "ModelFileError with both widths, when the model opens"
)
def test_a_projector_to_another_width_is_refused(gemma):
    with pytest.raises(ModelFileError, match=r"expected a projector to 64 features.*found 48 features"):
        family(gemma).check_text(backbay.gguf.open(stored("gemma3")), 64, None)


@pytest.mark.parametrize(("encoder", "text"), [("gemma3-projector", "qwen2"), ("llava-old", "gemma3")])
def test_a_projector_of_another_kind_is_refused_though_the_width_fits(tmp_path, encoder, text):
    projector = family(unpacked(encoder, tmp_path))
    with pytest.raises(ModelFileError, match=f"of the architecture '{text}', found one of {projector.name}"):
        projector.check_text(backbay.gguf.open(stored(text)), 48, None)
    family(unpacked("llava-old", tmp_path)).check_text(backbay.gguf.open(stored("qwen2")), 48, None)


@pytest.mark.fault(
    "the vocabulary lacks a picture's tokens", "ModelFileError with the tokens, when the model opens"
)
def test_a_vocabulary_without_the_tokens_around_a_picture_is_refused(gemma):
    text = backbay.gguf.open(stored("gemma3"))
    with pytest.raises(ModelFileError, match="<start_of_image>, <end_of_image>"):
        family(gemma).check_text(text, 48, tokenizer_from_gguf(TINY))


@pytest.mark.fault(
    "the projector's rows have other further vectors than the text adds",
    "ModelFileError with both numbers, when the model opens",
)
def test_a_projector_with_other_further_vectors_is_refused(tmp_path):
    projector = unpacked("qwen3vl-projector", tmp_path)
    copied = Path(shutil.copy(stored("qwen3"), tmp_path))
    text = changed(copied, architecture="qwen3vl").rename(tmp_path / "text.gguf")
    with pytest.raises(ModelFileError, match=r"0 further vectors, as .* takes, found 2 further vectors"):
        family(projector).check_text(backbay.gguf.open(text), 48, None)
    marked = {"clip.vision.is_deepstack_layers": [True, False, False, False]}
    with pytest.raises(ModelFileError, match=r"found 1 further"):
        family(changed(projector, metadata=marked)).check_text(backbay.gguf.open(text), 48, None)
    recurrent = changed(text, architecture="qwen35", metadata={"qwen35.n_deepstack_layers": 2})
    with pytest.raises(ModelFileError, match=r"0 further vectors, as .* takes, found 2 further vectors"):
        family(projector).check_text(backbay.gguf.open(recurrent), 48, None)


@pytest.mark.fault(
    "a model of text is given as projector", "ModelFileError that a projector has an encoder of pictures"
)
def test_a_model_of_text_is_no_projector():
    with pytest.raises(ModelFileError, match=r"a projector with an encoder of pictures.*'llama'"):
        next(encoder_files(stored("llama-llama3"), stored("llama-llama3")))


def test_a_projector_of_an_unknown_kind_is_refused_with_those_that_are_known(gemma):
    with pytest.raises(ModelFileError, match=r"gemma3, idefics3, mlp, .*; found 'gemma4'|'gemma4'"):
        family(changed(gemma, metadata={"clip.projector_type": "gemma4"}))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"clip.vision.patch_size": 15}, "a divisor of the image_size 56"),
        ({"clip.vision.patch_size": 0}, "from 1"),
        ({"clip.vision.projector.scale_factor": 3}, "a division of 4 by 4 patches into equal squares"),
        ({"clip.vision.image_std": [0.5, 0.0, 0.5]}, "numbers above 0"),
        ({"clip.vision.image_mean": [0.5, 0.5]}, "three numbers"),
        ({"clip.vision.image_size": None}, "vision.image_size"),
    ],
)
def test_metadata_that_cannot_be_are_refused_by_the_header(gemma, metadata, said):
    with pytest.raises(ModelFileError, match=said):
        family(changed(gemma, metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"clip.vision.image_grid_pinpoints": [56, 112, 56]}, "heights and widths"),
        ({"clip.vision.image_grid_pinpoints": [57, 112]}, "multiples of the image_size 56"),
    ],
)
def test_pinpoints_that_no_tiles_fill_are_refused(llava, metadata, said):
    with pytest.raises(ModelFileError, match=said):
        family(changed(llava, metadata=metadata))


def test_squares_that_do_not_fill_a_tile_are_refused(tmp_path):
    file = changed(
        unpacked("idefics3-projector", tmp_path), metadata={"clip.vision.projector.scale_factor": 4}
    )
    with pytest.raises(ModelFileError, match="a divisor of 6, the patches of a row"):
        family(file)


def test_heads_that_two_axes_cannot_share_are_refused(tmp_path):
    file = changed(
        unpacked("mistral3-projector", tmp_path), metadata={"clip.vision.attention.head_count": 16}
    )
    with pytest.raises(ModelFileError, match="heads of a multiple of 4 features"):
        MediaEncoder(family(file), "cpu_ref")


def test_an_older_minicpmv_is_refused(tmp_path):
    file = changed(unpacked("minicpmv-projector", tmp_path), metadata={"clip.minicpmv_version": 2})
    with pytest.raises(ModelFileError, match=r"3, MiniCPM-V 2\.6, or a later one"):
        family(file)


def test_queries_are_needed(tmp_path):
    file = changed(unpacked("minicpmv-projector", tmp_path), tensors={"resampler.query": None})
    with pytest.raises(ModelFileError, match=r"queries resampler\.query"):
        family(file)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metadata": {"clip.vision.attention.head_count": 3}}, "a divisor of the width 32"),
        ({"metadata": {"clip.vision.block_count": 5}}, r"v\.blk\.4\."),
        ({"metadata": {"clip.vision.block_count": 3}}, r"a count that includes v\.blk\.3\."),
        ({"metadata": {"clip.vision.embedding_length": 64}}, r"v\.patch_embd\.weight"),
        ({"tensors": {"v.post_ln.weight": None}}, r"v\.post_ln\.weight"),
        ({"tensors": {"v.position_embd.weight": np.zeros((15, 32), np.float32)}}, r"\[32, 16\]"),
        (
            {"tensors": {"v.blk.1.attn_k.weight": np.zeros((32, 31), np.float32)}},
            r"v\.blk\.1\.attn_k\.weight",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused_when_the_encoder_opens(gemma, change, said):
    with pytest.raises(ModelFileError, match=said):
        MediaEncoder(family(changed(gemma, **change)), "cpu_ref")


def test_features_of_an_earlier_block_are_refused(llava):
    with pytest.raises(ModelFileError, match="the output of the last block"):
        MediaEncoder(family(changed(llava, metadata={"clip.vision.feature_layer": [2]})), "cpu_ref")


OLDER = {
    "mllama-single": {
        "attn_norm": "ln1",
        "ffn_norm": "ln2",
        "attn_output": "attn_out",
        "ffn_up.": "ffn_down.",
        "ffn_down.": "ffn_up.",
    },
    "llama4-projector": {"attn_post_norm": "ln2"},  # which llama.cpp applies in another place
}
"""Names that older converters gave tensors."""


@pytest.mark.parametrize("name", OLDER)
def test_files_of_older_converters_give_the_same_rows(tmp_path, name):
    path, older = unpacked(name, tmp_path), {}
    for tensor in gguf.GGUFReader(path).tensors:
        found = (tensor.name.replace(new, old) for new, old in OLDER[name].items() if new in tensor.name)
        if (renamed := next(found, None)) is not None:
            older = {tensor.name: None, **older, renamed: np.array(tensor.data)}
    assert older
    rows = []
    for each in (path, changed(path, tensors=older)):
        encoder = opened(each)
        rows.append(encoder.embed([encoder.family.prepare(np.full((30, 70, 3), 90, np.uint8))])[0])
        encoder.close()
    np.testing.assert_array_equal(*rows)
