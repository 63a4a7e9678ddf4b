"""Folders of Hugging Face's transformers, opened as model files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import (
    TEXTS,
    byte_pairs,
    llama_config,
    llama_tensors,
    safetensors,
    write_folder,
    write_llama,
)
from model_files import KINDS, unpacked, unpacked_folder

import backbay
import backbay.gguf
from backbay import BackendParams, DType, ModelFileError
from backbay.discovery import open_model
from backbay_engine import estimate, load, tokenizer_from_gguf
from backbay_engine.checkpoints.transformers.config_json import Settings
from backbay_engine.checkpoints.transformers.predicting_blocks import with_predicting_blocks

FOLDERS = sorted(path.name.removesuffix(".hf.xz") for path in KINDS.glob("*.hf.xz"))
GENERAL = ("general.", "tokenizer.")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_has_the_weights_that_the_converter_of_llama_cpp_writes(name: str, tmp_path: Path) -> None:
    converted = open_model(unpacked(name, tmp_path))
    folder = open_model(unpacked_folder(name, tmp_path))
    assert {*folder.tensors} == {*converted.tensors}
    for tensor, info in converted.tensors.items():
        have = folder.tensors[tensor]
        assert (have.dtype, _trimmed(have.shape)) == (info.dtype, _trimmed(info.shape)), tensor
        a, b = converted.data(tensor), folder.data(tensor)
        if tensor.endswith("ssm_a"):  # an exponential, whose last bit depends on the library
            np.testing.assert_allclose(b.view("<f4"), a.view("<f4"), rtol=2e-7)
        else:
            assert np.array_equal(a, b), tensor
    wanted = {
        key for key in converted.metadata if not key.startswith(GENERAL) and not key.endswith("pooling_type")
    }
    assert {key: _plain(folder.metadata.get(key)) for key in wanted} == {
        key: _plain(converted.metadata[key]) for key in wanted
    }


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.trim_zeros([n - 1 for n in shape], "b"))


def _plain(value: object) -> object:
    """A value with numbers as a file holds them; one for each block is one for all if they are equal."""
    if isinstance(value, float):
        return float(np.float32(value))
    if isinstance(value, np.ndarray | Sequence) and not isinstance(value, str):
        items = [_plain(getattr(item, "item", lambda item=item: item)()) for item in value]
        items = [round(item, 5) if isinstance(item, float) else item for item in items]
        return items[0] if items and len(set(items)) == 1 else items
    return value


def test_a_folder_answers_with_text_and_takes_the_memory_of_its_weights(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    tokenizer = byte_pairs()
    with load(folder, "cpu_ref", context=64) as llm:
        estimated = str(estimate(folder, "cpu_ref", context=64))
        assert estimated.replace("unallocated", "allocated") == str(llm.memory())
        assert llm.encode(TEXTS[0])[1:] == tokenizer.encode(TEXTS[0]).ids
        assert llm.encode(TEXTS[0])[0] == tokenizer.token_to_id("<s>")
        assert llm.generate(TEXTS[0], max_tokens=4, temperature=0).tokens
        assert llm.chat([{"role": "user", "content": "hi"}], max_tokens=2).tokens
        assert len(llm.end_ids) == 1


@pytest.mark.parametrize("name", sorted(backbay.backends()))
def test_weights_in_bf16_over_several_files_give_the_logits_of_the_same_weights_in_f32(
    name: str, tmp_path: Path
) -> None:
    half = write_llama(tmp_path / "half", dtype=np.uint16, files=3)
    config = json.loads((half / "config.json").read_text())
    wide = {
        key: (each.astype(np.uint32) << 16).view(np.float32)
        for key, each in llama_tensors(config, np.uint16).items()
    }
    whole = write_folder(tmp_path / "whole", config, wide)
    tokens = list(range(5, 25))
    found = []
    for folder in (half, whole):
        with load(folder, name, context=64, kv_dtype="f32") as llm:
            found.append(llm.logits(tokens))
    error = np.square(found[0] - found[1]).sum() / np.square(found[1]).sum()
    assert error < 1e-4  # a backend may round activations to the dtype of the weights


def test_weights_that_need_no_change_are_mapped_and_others_are_made_when_they_are_read(
    tmp_path: Path,
) -> None:
    with open_model(write_llama(tmp_path / "llama", dtype=np.uint16)) as model:
        value, query = model.data("blk.0.attn_v.weight"), model.data("blk.0.attn_q.weight")
        assert model.tensors["blk.0.attn_v.weight"].dtype is DType.BF16
        assert model.tensors["output_norm.weight"].dtype is DType.F32
        assert not value.flags.writeable
        assert not query.flags.writeable
        assert value.base is not None  # a view of the file
        assert query is model.data("blk.0.attn_q.weight")
        assert 0 < model.derived_nbytes < sum(info.nbytes for info in model.tensors.values()) / 4
        assert b"".join(map(bytes, model.chunks("blk.0.attn_q.weight"))) == bytes(query)


def test_vectors_are_f32_whatever_the_others_are(tmp_path: Path) -> None:
    file = unpacked_folder("rwkv7", tmp_path) / "model.safetensors"
    raw = file.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    rows = {name: row for name, row in json.loads(raw[8:end]).items() if name != "__metadata__"}
    wide = {
        name: np.frombuffer(raw[end:][slice(*row["data_offsets"])], np.uint32).reshape(row["shape"])
        for name, row in rows.items()
    }
    file.write_bytes(safetensors({name: (array >> 16).astype(np.uint16) for name, array in wide.items()}))
    with open_model(file.parent) as model:
        dtypes = {(len(info.shape) > 1, info.dtype) for info in model.tensors.values()}
    assert dtypes >= {(False, DType.F32), (True, DType.BF16)} and (False, DType.BF16) not in dtypes


def test_copied_weights_are_those_of_mapped_ones(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama", files=2)
    tokens = list(range(5, 15))
    with load(folder, "cpu_ref", context=32) as llm:
        mapped = llm.logits(tokens)
    with load(folder, "cpu_ref", context=32, params=BackendParams(options={"weights": "copied"})) as llm:
        assert np.array_equal(llm.logits(tokens), mapped)


def test_a_folder_of_an_encoder_and_decoders_prefixes_are_left_out(tmp_path: Path) -> None:
    """A model with an encoder of pictures is its text here."""
    config = llama_config(300)
    tensors = llama_tensors(config)
    named = {name.replace("model.", "model.language_model.", 1): each for name, each in tensors.items()}
    named["model.vision_tower.patch.weight"] = np.zeros((4, 4), np.float32)
    whole = {
        "architectures": ["LlamaForCausalLM"],
        "text_config": config,
        "vision_config": {"hidden_size": 4},
    }
    folder = write_folder(tmp_path / "seeing", whole, named)
    with open_model(folder) as model, open_model(write_folder(tmp_path / "text", config, tensors)) as text:
        assert {*model.tensors} == {*text.tensors}


def test_tokenizers_read_a_folder_and_a_folder_without_one_takes_ids(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    assert tokenizer_from_gguf(folder).chat_template is not None
    (folder / "tokenizer.json").unlink()
    with load(folder, "cpu_ref", context=16) as llm:
        assert llm.logits([1, 2]).shape[0] == 2


@pytest.mark.fault(
    "a model folder holds an unknown architecture", "ModelFileError naming the class and those that are known"
)
def test_an_unknown_class_of_transformers_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_config(300) | {"architectures": ["LLamaForCausalLM"]}, {})
    with pytest.raises(ModelFileError, match="found 'LLamaForCausalLM'; nearest: 'LlamaForCausalLM'"):
        open_model(folder)


@pytest.mark.fault(
    "a model folder holds quantized weights", "ModelFileError naming the quantization and the remedy"
)
def test_quantized_weights_are_refused_with_a_remedy(tmp_path: Path) -> None:
    config = llama_config(300) | {"quantization_config": {"quant_method": "gptq"}}
    with pytest.raises(
        ModelFileError, match=r"folder of the original model, .*found the quantization 'gptq'"
    ):
        open_model(write_folder(tmp_path, config, llama_tensors(llama_config(300))))


@pytest.mark.parametrize(
    ("apart", "found"),
    [
        (
            {
                "mtp.norm.weight",
                "mtp.layers.0.mlp.up.weight",
                "mtp.layers.999999.mlp.up.weight",
                "model.layers.3.mlp.up.weight",
            },
            set(),  # no head
        ),
        (
            {
                "model.mtp.fc.weight",
                "mtp.layers.0.mlp.up.weight",
                "mtp.layers.1.mlp.up.weight",
                "mtp.other.weight",
            },
            {"blk.2.nextn.eh_proj.weight", "model.layers.2.mlp.up.weight"},
        ),
        (
            {
                f"model.layers.{n}.{name}.weight"
                for n in (2, 3, 5)
                for name in ("eh_proj", "mlp.up", "shared_head.norm")
            },
            {f"blk.{n}.nextn.{name}.weight" for n in (2, 3) for name in ("eh_proj", "shared_head_norm")}
            | {f"model.layers.{n}.mlp.up.weight" for n in (2, 3)},
        ),
    ],
)
def test_of_further_blocks_only_those_with_a_head_are_in_the_file(apart: set[str], found: set[str]) -> None:
    own = {"model.embed_tokens.weight", "model.layers.1.mlp.up.weight", "model.norm.weight"}
    settings = Settings(Path("m"), {"num_hidden_layers": 2}, "M")
    assert {*with_predicting_blocks(dict.fromkeys(own | apart), settings, kept=True)} == own | found
    assert {*with_predicting_blocks(dict.fromkeys(own | apart), settings, kept=False)} == own


def test_two_tensors_of_a_head_with_one_name_are_refused() -> None:
    settings, twice = (
        Settings(Path("m"), {"num_hidden_layers": 2}, "M"),
        ("mtp.fc.weight", "model.layers.2.eh_proj.weight"),
    )
    with pytest.raises(ModelFileError, match=r"one tensor for 'blk\.2\.nextn\.eh_proj\.weight'"):
        with_predicting_blocks(dict.fromkeys(twice), settings, kept=True)


@pytest.mark.fault(
    "a model folder holds PyTorch's pickles", "ModelFileError saying that they can run code, and the remedy"
)
def test_pickles_are_refused_with_a_remedy(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, llama_config(300), {})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="can run any code; save the model as safetensors"):
        open_model(folder)


@pytest.mark.fault(
    "a tokenizer cuts texts in an unknown way", "ModelFileError with the pattern and the remedy"
)
def test_an_unknown_pre_tokenizer_is_refused_with_its_pattern(tmp_path: Path) -> None:
    folder = write_llama(tmp_path)
    found = json.loads((folder / "tokenizer.json").read_text())
    found["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "[a-z]+"}
    (folder / "tokenizer.json").write_text(json.dumps(found))
    with pytest.raises(ModelFileError, match=r"convert_hf_to_gguf.py, found \[a-z\]\+"):
        open_model(folder)


def test_a_folder_that_changes_while_it_is_in_use_is_an_error(tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "llama")
    with load(folder, "cpu_ref", context=16) as llm:
        with (folder / "model.safetensors").open("ab") as file:
            file.write(b"x")
        with pytest.raises(ModelFileError, match="bytes that it had when it was opened"):
            llm.logits([1, 2])
