"""Models of other programs, found by name without a network."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoint_folders import write_llama
from small_llama import write_small_llama
from small_vision import write_small_vision

from backbay import ModelFileError
from backbay.cli import main
from backbay.discovery import open_model
from backbay_engine import load
from backbay_engine.checkpoints import ModelPaths, locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home without the variables of other programs."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "OLLAMA_MODELS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def in_cache(cache: Path, name: str, *, reference: bool = True) -> Path:
    """The snapshot of a repository in Hugging Face's cache."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    if reference:
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(COMMIT)
    return snapshot


def linked(folder: Path, snapshot: Path) -> None:
    """Files as links to blobs, as the cache has them."""
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    for path in folder.iterdir():
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")


@pytest.mark.parametrize("variable", [None, "HF_HOME", "HF_HUB_CACHE"])
def test_a_folder_in_hugging_faces_cache_is_found(
    variable: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    if variable is not None:
        cache = home / "elsewhere" / ("hub" if variable == "HF_HOME" else "")
        monkeypatch.setenv(variable, str(cache.parent if variable == "HF_HOME" else cache))
    linked(write_llama(home / "llama"), in_cache(cache, "org/name"))
    with load("hf:org/name", "cpu_ref", context=32) as llm:
        assert llm.generate("Once", max_tokens=2).tokens
    with open_model("hf:org/name") as model:
        assert model.metadata["general.name"] == "name"
    assert locate("hf:org/name@main") == locate("hf:org/name")


def test_a_repository_of_gguf_files_gives_the_one_that_is_named(home: Path) -> None:
    snapshot = in_cache(home / ".cache" / "huggingface" / "hub", "org/name-GGUF", reference=False)
    write_small_llama(snapshot / "name-Q8_0.gguf")
    assert locate("hf:org/name-GGUF").path == snapshot / "name-Q8_0.gguf"
    write_small_llama(snapshot / "name-F16.gguf")
    assert locate("hf:org/name-GGUF:q8_0").path == snapshot / "name-Q8_0.gguf"
    assert locate("hf:org/name-GGUF/name-F16.gguf").path == snapshot / "name-F16.gguf"
    with pytest.raises(ModelFileError, match=r"choose one by its name.*found name-F16.gguf, name-Q8_0.gguf"):
        locate("hf:org/name-GGUF")


@pytest.mark.fault(
    "a model is not in another program's store", "ModelFileError with what was searched, and near names"
)
def test_a_missing_model_names_what_was_searched_and_what_is_near(home: Path) -> None:
    cache = home / ".cache" / "huggingface" / "hub"
    in_cache(cache, "org/name")
    with pytest.raises(
        ModelFileError,
        match=r"hub \(nothing is downloaded: run `hf download org/nam` first\), found org/name; nearest",
    ) as caught:
        load("hf:org/nam", "cpu_ref")
    assert str(cache) in str(caught.value)
    with pytest.raises(ModelFileError, match="run `ollama pull llama9` first"):
        load("ollama:llama9", "cpu_ref")
    with pytest.raises(ModelFileError, match=r"\.lmstudio/models and .*lm-studio/models"):
        load("lmstudio:org/name", "cpu_ref")


@pytest.mark.fault("a user has no home", "ModelFileError with the places that were searched")
def test_a_user_without_a_home_is_told_what_was_searched(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name, place in (("hf:a/b", "~/.cache"), ("ollama:a", "~/.ollama"), ("lmstudio:a/b", "~/.lmstudio")):
        with pytest.raises(ModelFileError, match=place):
            load(name, "cpu_ref")


@pytest.mark.parametrize(
    "name", ["hf:../../etc", "hf:", "hf:..", "hf:a/..", "ollama:../x", "ollama:a/b/c/d", "lmstudio:../.."]
)
def test_names_are_no_paths(name: str, home: Path) -> None:
    with pytest.raises(ModelFileError, match="a name like"):
        locate(name)


def ollama_model(store: Path, name: str, *layers: tuple[str, Path]) -> None:
    """A model in Ollama's store: a manifest that names blobs."""
    described = []
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    for kind, path in layers:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, store / "blobs" / f"sha256-{digest}")
        described.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"})
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": described}))


def test_a_model_of_ollama_is_found_by_name_and_tag(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_small_llama(home / "model.gguf")
    store = home / ".ollama" / "models"
    ollama_model(store, "registry.ollama.ai/library/small/latest", ("model", model))
    ollama_model(store, "registry.ollama.ai/someone/small/1b", ("model", model))
    ollama_model(store, "hf.co/org/name/Q8_0", ("model", model))
    for name in (
        "ollama:small",
        "ollama:small:latest",
        "ollama:someone/small:1b",
        "ollama:hf.co/org/name:Q8_0",
    ):
        assert Path(locate(name).path).parent == store / "blobs"
    with load("ollama:small", "cpu_ref", context=32) as llm:
        assert llm.logits([1, 2]).shape[0] == 2
    with pytest.raises(ModelFileError, match=r"found hf.co/org/name:Q8_0, small:latest, someone/small:1b"):
        locate("ollama:smal")
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "other"))
    with pytest.raises(ModelFileError, match=r"other \(nothing is downloaded"):
        locate("ollama:small")


def test_the_projector_of_a_model_of_ollama_is_used(home: Path) -> None:
    model, projector = write_small_vision(home, "llava")
    assert projector is not None
    store = home / ".ollama" / "models"
    ollama_model(
        store, "registry.ollama.ai/library/seeing/latest", ("model", model), ("projector", projector)
    )
    with load("ollama:seeing", "cpu_ref", context=256) as llm:
        assert llm.modalities == {"text", "image"}


@pytest.mark.fault(
    "a manifest of Ollama's, or a pointer of LM Studio's, is hostile", "ModelFileError, or it is passed over"
)
def test_a_hostile_manifest_is_refused(home: Path) -> None:
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/bad/latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../etc/passwd"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    with pytest.raises(ModelFileError, match="a digest like"):
        locate("ollama:bad")
    manifest.write_text("[]")
    with pytest.raises(ModelFileError, match="a JSON object"):
        locate("ollama:bad")
    manifest.write_text(json.dumps({"layers": [{"mediaType": ["model"], "digest": {}}, 5, None]}))
    with pytest.raises(ModelFileError, match="a layer with a model"):
        locate("ollama:bad")
    (home / ".lmstudio-home-pointer").write_text("x" * 5000)
    with pytest.raises(ModelFileError, match="nothing is downloaded"):
        locate("lmstudio:org/name")


@pytest.mark.fault("the name of a model has thousands of characters", "ModelFileError that says so")
@pytest.mark.parametrize(
    "name", ["ollama:{}", "ollama:a:{}", "lmstudio:{}/{}", "hf:{}/{}", "hf:a/b@{}", "{}"]
)
def test_a_name_that_no_file_can_have_is_refused(name: str, home: Path) -> None:
    with pytest.raises(ModelFileError):
        load(name.format(*["n" * 5000] * 2), "cpu_ref")


def test_a_model_of_lm_studio_is_found_in_its_new_and_old_folders(home: Path) -> None:
    new, old = (
        home / ".lmstudio" / "models" / "org" / "new",
        home / ".cache" / "lm-studio" / "models" / "org" / "old",
    )
    for folder in (new, old):
        folder.mkdir(parents=True)
        write_small_llama(folder / "model-Q8_0.gguf")
    assert locate("lmstudio:org/new").path == new / "model-Q8_0.gguf"
    assert locate("lmstudio:old").path == old / "model-Q8_0.gguf"
    assert locate("lmstudio:org/old:q8_0").path == old / "model-Q8_0.gguf"


def test_commands_take_names(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    linked(write_llama(home / "llama"), in_cache(home / ".cache" / "huggingface" / "hub", "org/name"))
    assert main(["inspect", "hf:org/name", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["general.architecture"] == "llama"
    assert main(["tokenize", "hf:org/name", "Once upon"]) == 0
    assert (
        main(
            [
                "run",
                "hf:org/name",
                "-p",
                "Once",
                "--max-tokens",
                "2",
                "--backend",
                "cpu_ref",
                "--context",
                "32",
            ]
        )
        == 0
    )
    assert main(["memory", "hf:org/name", "--backend", "cpu_ref", "--context", "32"]) == 0
    assert main(["inspect", "hf:org/other"]) == 1
    assert "nothing is downloaded" in capsys.readouterr().err


def test_a_worker_finds_a_model_by_name(home: Path) -> None:
    linked(write_llama(home / "llama"), in_cache(home / ".cache" / "huggingface" / "hub", "org/name"))
    with (
        load("hf:org/name", "cpu_ref", context=32, worker=True) as llm,
        load(home / "llama", "cpu_ref", context=32) as own,
    ):
        assert np.array_equal(llm.logits([1, 2, 3]), own.logits([1, 2, 3]))
        assert llm.chat([{"role": "user", "content": "hi"}], max_tokens=2).tokens


def test_a_folder_of_one_gguf_file_is_this_file_with_its_projector(home: Path) -> None:
    model, projector = write_small_vision(home / "seeing", "llava")
    assert projector is not None
    projector = projector.rename(projector.with_name("mmproj-small.gguf"))
    assert locate(home / "seeing") == ModelPaths(model, projector)
    with load(home / "seeing", "cpu_ref", context=256) as llm:
        assert llm.modalities == {"text", "image"}
    assert locate(write_llama(home / "llama")) == ModelPaths(home / "llama")
