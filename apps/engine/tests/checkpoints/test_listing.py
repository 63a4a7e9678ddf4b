"""The models in a folder, and their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backbay import ModelFileError
from backbay_engine import ModelPaths, locate, models_in, projector_beside

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")


def test_a_folder_gives_its_files_and_the_folders_of_transformers(tmp_path: Path) -> None:
    files(
        tmp_path,
        "a.gguf",
        "b-00001-of-00002.gguf",
        "b-00002-of-00002.gguf",
        "notes.txt",
        "part.gguf.download",
    )
    files(tmp_path / "seeing", "seeing-q8.gguf", "mmproj-seeing.gguf")
    files(tmp_path / "hf" / "model", "config.json", "model.safetensors")
    assert models_in(tmp_path) == {
        "a": ModelPaths(tmp_path / "a.gguf"),
        "b": ModelPaths(tmp_path / "b-00001-of-00002.gguf"),
        "model": ModelPaths(tmp_path / "hf" / "model"),
        "seeing-q8": ModelPaths(
            tmp_path / "seeing" / "seeing-q8.gguf", tmp_path / "seeing" / "mmproj-seeing.gguf"
        ),
    }


def test_files_of_whisper_cpp_are_told_by_how_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files(tmp_path, "notes.bin", "pytorch_model.bin")
    (tmp_path / "ggml-base.bin").write_bytes(b"lmgg" + bytes(40))
    repository = tmp_path / "cache" / "models--ggerganov--whisper.cpp" / "snapshots" / COMMIT
    files(repository, "README.md")
    (repository / "ggml-tiny.bin").write_bytes(b"lmgg" + bytes(40))
    assert models_in(tmp_path) == {"ggml-base": ModelPaths(tmp_path / "ggml-base.bin")}
    assert models_in(tmp_path / "cache") == {
        "ggerganov/whisper.cpp": ModelPaths(repository / "ggml-tiny.bin")
    }
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in (repository, "hf:ggerganov/whisper.cpp", "hf:ggerganov/whisper.cpp/ggml-tiny.bin"):
        assert locate(name) == ModelPaths(repository / "ggml-tiny.bin")


def test_two_files_of_one_name_get_different_names(tmp_path: Path) -> None:
    files(tmp_path, "one/model.gguf", "two/model.gguf")
    assert sorted(models_in(tmp_path)) == ["model", "two/model"]


def test_hugging_faces_cache_gives_repositories(tmp_path: Path) -> None:
    files(tmp_path / "models--org--one" / "snapshots" / COMMIT, "one-q8_0.gguf")
    files(tmp_path / "models--org--two" / "snapshots" / COMMIT, "two-q8_0.gguf", "two-f16.gguf")
    files(tmp_path / "models--org--begun" / "blobs", "1234")
    assert sorted(models_in(tmp_path)) == ["org/one", "org/two/two-f16.gguf", "org/two/two-q8_0.gguf"]


def test_ollamas_store_gives_names_and_tags(tmp_path: Path) -> None:
    digest = "a" * 64
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}]
    manifest = tmp_path / "manifests" / "registry.ollama.ai" / "library" / "tiny" / "latest"
    files(manifest.parent, "latest", "broken")
    manifest.write_text(json.dumps({"layers": layers}))
    (manifest.parent / "broken").write_text(json.dumps({"layers": []}))
    files(tmp_path / "blobs", f"sha256-{digest}")
    assert models_in(tmp_path) == {"tiny:latest": ModelPaths(tmp_path / "blobs" / f"sha256-{digest}")}


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"expected a readable folder, found No such file"):
        models_in(tmp_path / "none")
    assert models_in(tmp_path) == {}


def test_a_projector_belongs_to_the_model_of_its_name(tmp_path: Path) -> None:
    files(tmp_path, "text-q4_0.gguf", "Sees-Well-Q4_K_M.gguf", "mmproj-sees-well-f16.gguf", "odd.gguf")
    found = models_in(tmp_path)
    assert {name: each.projector for name, each in found.items() if each.projector is not None} == {
        "Sees-Well-Q4_K_M": tmp_path / "mmproj-sees-well-f16.gguf"
    }
    assert projector_beside(tmp_path / "Sees-Well-Q4_K_M.gguf") == tmp_path / "mmproj-sees-well-f16.gguf"
    assert projector_beside(tmp_path / "text-q4_0.gguf") is None
