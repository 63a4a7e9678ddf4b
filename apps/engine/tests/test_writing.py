"""Model files that are written: their weights, their metadata, and what llama.cpp makes of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import TEXTS, llama_config, llama_tensors, write_folder, write_llama
from gguf import GGMLQuantizationType, GGUFReader, quants
from model_files import NAMES, stored
from small_llama import write_small_llama

from backbay import BackbayError, DType, ModelFileError, OptionError
from backbay.cli import main
from backbay.discovery import open_model
from backbay_engine import load
from backbay_engine.checkpoints.model_stores import name_of
from backbay_engine.writing import RECIPES, write_model
from backbay_engine.writing.gguf_file import encode_rows as quantized

# of the mean square, on normal weights; ggml's own quantizers give the same to the third digit
ERRORS = {
    DType.Q8_0: 3e-5, DType.Q6_K: 3.3e-4, DType.Q5_K: 1.4e-3, DType.Q5_1: 1.5e-3, DType.Q5_0: 1.9e-3,
    DType.Q4_K: 5.2e-3, DType.Q4_1: 6.2e-3, DType.Q4_0: 7.6e-3,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ERRORS)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 300.0])
def test_quantizers_are_as_exact_as_those_of_ggml(dtype: DType, scale: float) -> None:
    numbers = (np.random.default_rng(0).standard_normal((64, 512)) * scale).astype(np.float32)
    raw = quantized(numbers, dtype).reshape(64, -1)
    back = quants.dequantize(raw, GGMLQuantizationType(dtype.value))
    small = 40 if scale < 1e-3 else 1  # the scales of blocks are f16, which has few bits there
    assert np.square(back - numbers).mean() < ERRORS[dtype] * np.square(numbers).mean() * small


@pytest.mark.parametrize("dtype", [DType.Q4_K, DType.Q5_K, DType.Q6_K])
def test_blocks_of_zeros_of_one_number_and_of_one_sign_survive(dtype: DType) -> None:
    numbers = np.zeros((5, 256), np.float32)
    numbers[1], numbers[2], numbers[3] = 0.5, -0.25, np.linspace(1, 2, 256)
    numbers[4, 7] = 1e-30
    back = quants.dequantize(quantized(numbers, dtype).reshape(5, -1), GGMLQuantizationType(dtype.value))
    assert np.abs(back - numbers).max() < 0.1
    assert not back[0].any()


def test_a_converted_folder_is_the_folder(tmp_path: Path) -> None:
    folder, path = write_llama(tmp_path / "llama"), tmp_path / "llama.gguf"
    with open_model(folder) as model:
        write_model(model, path, RECIPES["f32"])
        with open_model(path) as written:
            assert {*written.tensors} == {*model.tensors}
            assert all(np.array_equal(written.data(name), model.data(name)) for name in model.tensors)
            assert written.metadata["general.file_type"] == 0
    tokens = list(range(5, 30))
    with load(folder, "cpu_ref", context=64) as ours, load(path, "cpu_ref", context=64) as theirs:
        assert np.array_equal(ours.logits(tokens), theirs.logits(tokens))
        assert ours.encode(TEXTS[1]) == theirs.encode(TEXTS[1])
        assert ours.chat_prompt([{"role": "user", "content": "hi"}]) == theirs.chat_prompt(
            [{"role": "user", "content": "hi"}]
        )


@pytest.mark.parametrize("name", NAMES)
def test_metadata_of_a_file_keep_their_types_and_order(name: str, tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    with open_model(stored(name)) as model:
        write_model(model, path, RECIPES["f32"])
    before, after = GGUFReader(stored(name)), GGUFReader(path)
    own = ("GGUF.", "general.file_type", "general.quantization_version", "general.alignment")
    fields = [
        [(f.name, f.types, f.contents()) for f in each.fields.values() if not f.name.startswith(own)]
        for each in (before, after)
    ]
    assert fields[0] == fields[1]
    assert [tensor.name for tensor in after.tensors] == [tensor.name for tensor in before.tensors]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.few(2)
def test_a_recipe_gives_its_dtypes_and_an_answer_that_is_close(name: str, tmp_path: Path) -> None:
    folder, path = write_llama(tmp_path / "llama", width=256), tmp_path / f"{name}.gguf"
    with open_model(folder) as model:
        write_model(model, path, RECIPES[name])
    with open_model(path) as written:
        kinds = {tensor: info.dtype for tensor, info in written.tensors.items()}
    most = RECIPES[name].most
    assert kinds["blk.0.attn_q.weight"] is most
    assert kinds["output_norm.weight"] is DType.F32
    assert kinds["output.weight"] is (DType.Q6_K if most.is_quantized and most is not DType.Q8_0 else most)
    assert (kinds["blk.1.ffn_down.weight"] is DType.Q6_K) == (name in ("q4_k_m", "q5_k_m", "q6_k"))
    tokens = list(range(5, 30))
    with load(folder, "cpu_ref", context=64) as exact, load(path, "cpu_ref", context=64) as rounded:
        a, b = exact.logits(tokens), rounded.logits(tokens)
    assert np.square(a - b).sum() / np.square(a).sum() < (0.2 if most.is_quantized else 1e-4)


def test_rows_that_fill_no_blocks_get_smaller_blocks_or_f16(tmp_path: Path) -> None:
    path = tmp_path / "out.gguf"
    with open_model(write_llama(tmp_path / "llama", width=96)) as model:
        write_model(model, path, RECIPES["q4_k_m"])
    with open_model(path) as written:
        assert {info.dtype for info in written.tensors.values()} == {DType.F32, DType.Q5_0, DType.Q8_0}


def test_the_commands_write_files_and_say_what_is_in_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path, small = write_llama(tmp_path / "llama", width=256), tmp_path / "a.gguf", tmp_path / "b.gguf"
    assert main(["convert", str(folder), "-o", str(path), "--dtype", "F16"]) == 0
    assert "f16" in capsys.readouterr().out
    assert main(["quantize", str(path), "-o", str(small), "--dtype", "q4_k_m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nbytes"] == small.stat().st_size < path.stat().st_size / 2
    assert {"q4_k", "q6_k", "f32"} == {*found["weights"]}
    assert main(["quantize", str(small), "-o", str(tmp_path / "c.gguf"), "--dtype", "q4_0"]) == 0
    assert "quantized already" in capsys.readouterr().err


@pytest.mark.fault("a file to write exists already", "an error naming --force; the file stays as it is")
def test_no_file_is_replaced_without_force_and_never_the_one_that_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = write_small_llama(tmp_path / "model.gguf"), tmp_path / "other.gguf"
    other.write_bytes(b"precious")
    assert main(["quantize", str(path), "-o", str(other)]) == 2
    assert "--force to replace it" in capsys.readouterr().err
    assert other.read_bytes() == b"precious"
    assert main(["quantize", str(path), "-o", str(path), "--force"]) == 2
    assert "is the model that is read" in capsys.readouterr().err
    assert main(["quantize", str(path), "-o", str(other), "--force", "--dtype", "q8_0"]) == 0
    assert other.read_bytes()[:4] == b"GGUF"
    assert main(["convert", str(path), "-o", str(tmp_path / "x.gguf")]) == 2
    assert "is a GGUF file already" in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.gguf", "other.gguf"]


@pytest.mark.fault(
    "a model's weights are NaN when they are quantized", "BackbayError naming the tensor; no file is left"
)
def test_weights_that_are_not_finite_are_refused_and_no_file_is_left(tmp_path: Path) -> None:
    config = llama_config(300)
    tensors = llama_tensors(config)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan
    folder = write_folder(tmp_path / "broken", config, tensors)
    refused = pytest.raises(BackbayError, match=r"blk.1.ffn_up.weight has numbers that are not finite")
    with open_model(folder) as model, refused:
        write_model(model, tmp_path / "out.gguf", RECIPES["q8_0"])
    assert not list(tmp_path.glob("*.gguf*"))
    assert not list(tmp_path.glob(".*"))


def test_weights_that_are_too_large_for_f16_are_refused(tmp_path: Path) -> None:
    config = llama_config(300)
    tensors = llama_tensors(config)
    tensors["lm_head.weight"][3, 4] = 1e5
    with open_model(write_folder(tmp_path / "large", config, tensors)) as model:
        with pytest.raises(
            BackbayError, match=r"output.weight has numbers that are too large for f16; take bf16"
        ):
            write_model(model, tmp_path / "out.gguf", RECIPES["f16"])
        assert write_model(model, tmp_path / "out.gguf", RECIPES["bf16"])


def test_progress_goes_from_0_to_1(tmp_path: Path) -> None:
    seen: list[float] = []
    with open_model(write_llama(tmp_path / "llama")) as model:
        write_model(model, tmp_path / "out.gguf", RECIPES["q8_0"], progress=seen.append)
    assert seen[0] == 0
    assert seen[-1] == 1
    assert seen == sorted(seen)


def test_without_a_name_a_file_is_named_after_its_model_and_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_llama(tmp_path / "models" / "small.1")
    assert main(["convert", "models/small.1", "--dtype", "F16"]) == 0
    assert main(["quantize", "small.1-f16.gguf", "--dtype", "q8_0"]) == 0
    assert "\nsmall.1-f16-q8_0.gguf: " in capsys.readouterr().out
    assert main(["quantize", "small.1-f16.gguf", "--dtype", "q8_0"]) == 2
    assert "small.1-f16-q8_0.gguf exists; take another name" in capsys.readouterr().err


def test_names_in_known_places_name_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert name_of("hf:org/Name-1.5B") == "Name-1.5B"
    assert name_of("ollama:small:1b") == "small-1b"
    assert name_of("models/large-00002-of-00003.gguf") == "large"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").touch()
    assert name_of(".") == tmp_path.name


def test_a_missing_folder_and_a_missing_output_folder_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(tmp_path / "none"), "-o", str(tmp_path / "x.gguf")]) == 1
    with pytest.raises(SystemExit):
        main(["convert", str(tmp_path), "-o", str(tmp_path / "no" / "x.gguf")])
    (tmp_path / "empty").mkdir()
    assert main(["convert", str(tmp_path / "empty"), "-o", str(tmp_path / "x.gguf")]) == 1
    assert "config.json or one GGUF file" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.thorough
def test_writing_takes_little_memory_beside_the_model(tmp_path: Path) -> None:
    """A model of 100 MB is written in a process that may take 60 MB more than Python with its libraries."""
    import subprocess

    folder = write_llama(
        tmp_path / "llama", width=1024, dtype=np.float16, intermediate_size=4096, num_hidden_layers=4
    )
    script = """
import resource, sys
from pathlib import Path
from backbay.discovery import open_model
from backbay_engine.writing import RECIPES, write_model
import gguf, backbay_engine.checkpoints.transformers.folder
model = open_model(sys.argv[1])
now = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) * 1024
before, most = now(), 0
def look(done):
    global most
    most = max(most, now())
write_model(model, Path(sys.argv[2]), RECIPES["q8_0"], progress=look)
print(most - before)
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(folder), str(tmp_path / "out.gguf")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (folder / "model.safetensors").stat().st_size > 100e6
    assert int(run.stdout) < 60e6


@pytest.mark.parametrize("dtype", ["f32", "q8_0", "q4_0", "q4_k_m"])
def test_llama_cpp_reads_the_file_and_gives_the_same_logits(dtype: str, tmp_path: Path) -> None:
    """Quantized weights meet activations that llama.cpp rounds too."""
    llama_cpp = pytest.importorskip("llama_cpp")
    path = tmp_path / "out.gguf"
    with open_model(write_llama(tmp_path / "llama", width=256)) as model:
        write_model(model, path, RECIPES[dtype])
    theirs = llama_cpp.Llama(
        str(path), n_ctx=128, logits_all=True, verbose=bool(os.environ.get("SHOW")), type_k=0, type_v=0
    )
    for text in TEXTS:
        with load(path, "cpu_ref", context=128, kv_dtype="f32") as ours:
            ids = ours.encode(text)
            assert theirs.tokenize(text.encode(), add_bos=True, special=True) == ids
            wanted = ours.logits(ids)
        theirs.reset()
        theirs.eval(ids)
        found = np.array(theirs.scores[: len(ids)])
        assert np.square(found - wanted).sum() / np.square(wanted).sum() < (1e-6 if dtype == "f32" else 2e-3)
    theirs.close()


def test_errors_are_of_the_classes_that_docs_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        open_model(tmp_path)
    path = write_small_llama(tmp_path / "model.gguf")
    with open_model(path) as model, pytest.raises(OptionError):
        write_model(model, path, RECIPES["f32"])
