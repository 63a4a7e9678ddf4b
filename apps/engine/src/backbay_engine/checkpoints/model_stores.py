"""Where models lie that other programs have downloaded: found by name, without a network."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from backbay import ModelFileError
from backbay.gguf import nearest

from .json_files import first_bytes, read_object
from .whisper_file import is_whisper_file

Name: TypeAlias = str | os.PathLike[str]
MOST_LISTED = 8
_PART = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
_QUANTIZATION = re.compile(r"[-._](i?q\d\w*|tq\d\w*|bf16|fp?16|fp?32|mxfp4)$")
_DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
_SAFE = re.compile(r"[\w.\-]+")


@dataclass(frozen=True)
class ModelPaths:
    """The place of a model: its file or folder, and the file of its encoder of pictures, if one lies beside it."""

    path: Name
    projector: Path | None = None

    @property
    def stem(self) -> str:
        """The name of the file without its ending, and without the number of its part."""
        return _PART.sub("", Path(self.path).name).removesuffix(".gguf").removesuffix(".bin")


def locate(name: Name) -> ModelPaths:
    """The files of a model by its name: `hf:org/name`, `ollama:name:tag`, `lmstudio:org/name`; any other is a path.

    A folder is its only file in GGUF or of whisper.cpp, unless it has a configuration.
    """
    if not isinstance(name, (str, os.PathLike)):
        return ModelPaths(name)  # refused where files are opened
    if os.path.isdir(name):  # noqa: PTH112  a text that no path can be is no folder
        return _model_in(str(name), Path(name), Path(name).glob("*.*"), "")  # not below: that takes long
    scheme, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    find = _SCHEMES.get(scheme)
    if not colon or find is None or os.path.exists(name):  # noqa: PTH110
        return ModelPaths(name)
    try:
        return find(str(name), rest)
    except OSError as error:  # such as a name that is longer than the system's names may be
        raise ModelFileError(name, None, "the name of a model", error.strerror or error) from error


def name_of(model: str) -> str:
    """The name of a model for a file: `name` of `hf:org/name`, `name-tag` of `ollama:name:tag`; else its file's."""
    scheme, _, rest = model.partition(":")
    if scheme in _SCHEMES and not os.path.exists(model):  # noqa: PTH110
        return rest.rpartition("/")[2].replace(":", "-")
    return ModelPaths(Path(locate(model).path).absolute()).stem


def _are_safe(*parts: str) -> bool:
    """Whether parts of a name are no paths."""
    return all(_SAFE.fullmatch(part) and part.strip(".") for part in parts)


# -- Hugging Face's cache ------------------------------------------------------------------------------------


def hugging_face_cache() -> Path:
    given = os.environ.get
    cache = given("HF_HUB_CACHE") or given("HUGGINGFACE_HUB_CACHE")
    home = given("HF_HOME") or f"{given('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return _expanded(cache or f"{home}/hub")


def _hugging_face(name: str, rest: str) -> ModelPaths:
    """`org/name`, `org/name@revision`, `org/name:Q4_K_M` or `org/name/file.gguf`."""
    rest, _, kind = rest.partition(":")
    rest, _, revision = rest.partition("@")
    parts = [part for part in rest.split("/") if part]
    if not parts or not _are_safe(*parts, revision or "main"):
        raise _unknown(name, "a name like hf:org/name", rest, [])
    file = "/".join(parts[2:])
    cache, wanted = hugging_face_cache(), "--".join(["models", *parts[:2]])
    have = _names(cache, "models--*")
    if wanted not in have:
        remedy = f"nothing is downloaded: run `hf download {'/'.join(parts[:2])}` first"
        known = [each.removeprefix("models--").replace("--", "/") for each in have]
        raise _unknown(name, f"a model in {cache} ({remedy})", "/".join(parts[:2]), known)
    snapshot = snapshot_of(name, cache / wanted, revision or "main")
    return _model_in(name, snapshot, snapshot.rglob("*.*"), file or kind)


def snapshot_of(name: str, repository: Path, revision: str) -> Path:
    snapshots, reference = repository / "snapshots", repository / "refs" / revision
    commit = revision
    if reference.is_file():
        commit = first_bytes(reference, 100).decode("ascii", "replace").strip()
    have = _names(snapshots, "*")
    if commit in have:
        return snapshots / commit
    if revision == "main" and not reference.exists() and len(have) == 1:
        return snapshots / have[0]  # downloaded by its commit
    raise _unknown(name, f"revision {revision!r} in {snapshots}", commit, have)


# -- Ollama's store ------------------------------------------------------------------------------------------


def ollama_stores() -> list[Path]:
    if os.environ.get("OLLAMA_MODELS"):
        return [_expanded(os.environ["OLLAMA_MODELS"])]
    return [_expanded("~/.ollama/models"), Path("/usr/share/ollama/.ollama/models")]


def _ollama(name: str, rest: str) -> ModelPaths:
    """`name`, `name:tag`, `user/name:tag` or `host/user/name:tag`."""
    path, _, tag = rest.partition(":")
    parts = path.split("/")
    if len(parts) > 3 or not _are_safe(*parts, tag or "latest"):
        raise _unknown(name, "a name like ollama:name:tag", rest, [])
    full = [*("registry.ollama.ai", "library")[: 3 - len(parts)], *parts, tag or "latest"]
    stores = ollama_stores()
    for store in stores:
        manifest = store.joinpath("manifests", *full)
        if manifest.is_file():
            return ollama_layers(store, manifest)
    known = [name for store in stores for name, _ in manifest_names(store / "manifests")]
    searched = " and ".join(str(store) for store in stores)
    remedy = f"nothing is downloaded: run `ollama pull {rest}` first"
    raise _unknown(name, f"a model in {searched} ({remedy})", rest, known)


def ollama_layers(store: Path, manifest: Path) -> ModelPaths:
    found: dict[str, Path] = {}
    layers = read_object(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        kind, digest = (layer.get("mediaType"), layer.get("digest")) if isinstance(layer, dict) else ("", "")
        if isinstance(kind, str) and kind in _LAYERS:
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise ModelFileError(manifest, None, "a digest like sha256:...", repr(digest)[:200])
            found.setdefault(_LAYERS[kind], store / "blobs" / digest.replace(":", "-"))
    if "model" not in found:
        raise ModelFileError(manifest, None, "a layer with a model", "none")
    return ModelPaths(found["model"], found.get("projector"))


_LAYERS = {
    "application/vnd.ollama.image.model": "model",
    "application/vnd.ollama.image.projector": "projector",
}


def manifest_names(manifests: Path) -> Iterator[tuple[str, Path]]:
    """The names of models, as Ollama writes them, with their manifests."""
    for manifest in sorted(manifests.glob("*/*/*/*"))[:1000]:
        *place, tag = manifest.relative_to(manifests).parts
        short = "/".join(place).removeprefix("registry.ollama.ai/").removeprefix("library/")
        yield f"{short}:{tag}", manifest


# -- LM Studio's folder --------------------------------------------------------------------------------------


def lm_studio_folders() -> list[Path]:
    pointer, homes = _expanded("~/.lmstudio-home-pointer"), ["~/.lmstudio", "~/.cache/lm-studio"]
    if pointer.is_file():
        homes.insert(0, first_bytes(pointer, 4096).decode("utf-8", "replace").strip().replace("\0", ""))
    return [_expanded(home) / "models" for home in dict.fromkeys(homes)]


def _lm_studio(name: str, rest: str) -> ModelPaths:
    """`org/name`, `org/name/file.gguf`, or `name` alone if only one publisher has it."""
    rest, _, kind = rest.partition(":")
    parts = [part for part in rest.split("/") if part]
    if not parts or not _are_safe(*parts):
        raise _unknown(name, "a name like lmstudio:org/name", rest, [])
    folders = lm_studio_folders()
    found = [each for folder in reversed(folders) for each in _paths(folder, "*/*") if each.is_dir()]
    models = {f"{each.parent.name}/{each.name}": each for each in found}
    wanted = "/".join(parts[:2])
    alike = [each for each in models if each.rpartition("/")[2] == parts[0]]
    fitting = [wanted] if wanted in models else alike
    if len(fitting) != 1:
        searched = " and ".join(map(str, folders))
        what = "a model" if not fitting else f"one model, not {' and '.join(fitting)},"
        raise _unknown(name, f"{what} in {searched} (nothing is downloaded)", wanted, models)
    file = "/".join(parts[2:] if fitting == [wanted] else parts[1:])
    return _model_in(name, models[fitting[0]], models[fitting[0]].rglob("*.*"), file or kind)


# -- a folder with a model ------------------------------------------------------------------------------------


def _model_in(name: str, folder: Path, found: Iterable[Path], wanted: str) -> ModelPaths:
    """The model of a folder. `wanted` is a file's name, or a part of it, such as the name of a quantization."""
    try:
        files = sorted(model_files(found))
        whole = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    except OSError:
        files, whole = [], False
    firsts, projectors = models_and_projectors(files)
    if not wanted and (whole or ((folder / "config.json").exists() and not firsts)):
        return ModelPaths(folder)
    fitting = [each for each in firsts if wanted.lower() in str(each.relative_to(folder)).lower()]
    if wanted and not fitting:
        raise _unknown(name, f"a file {wanted!r} in {folder}", wanted, [each.name for each in firsts])
    if len(fitting) != 1:
        listed = ", ".join(each.name for each in fitting[:MOST_LISTED]) or "none"
        remedy = f"; choose one by its name, as {name}:PART_OF_THE_NAME" if fitting and ":" in name else ""
        expected = f"a readable file, or a folder with config.json or one GGUF file{remedy}"
        raise ModelFileError(name, None, expected, listed)
    return locate_in(fitting[0], firsts, projectors)


def model_files(files: Iterable[Path]) -> Iterator[Path]:
    """Those of some files that hold a model: in GGUF by their names, of whisper.cpp by how they begin."""
    for each in files:
        if (each.suffix == ".gguf" and each.is_file()) or (each.suffix == ".bin" and is_whisper_file(each)):
            yield each


def models_and_projectors(files: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The models among files, each by its first part, and the encoders of pictures."""
    listed = list(files)
    projectors = [each for each in listed if "mmproj" in each.name.lower()]
    return [each for each in listed if each not in projectors and is_first_part(each)], projectors


def locate_in(path: Path, models: Sequence[Path], projectors: Sequence[Path]) -> ModelPaths:
    """A file, with the encoder of pictures that has its name; or the only one beside the only model."""
    own = [each for each in projectors if _bare(each) == _bare(path)]
    if not own and len(models) == 1 == len(projectors):
        own = [*projectors]
    return ModelPaths(path, own[0] if own else None)


def projector_beside(path: Path) -> Path | None:
    """The file of the encoder of pictures that lies beside a model's file; None if there is none."""
    try:
        files = sorted(path.parent.glob("*.gguf"))
    except OSError:
        return None
    return locate_in(path, *models_and_projectors(files)).projector


def _bare(path: Path) -> str:
    """A model's name in a file's name: without "mmproj", and without the quantization."""
    name = ModelPaths(path).stem.lower().replace("mmproj", "").strip("-._")
    while (shorter := _QUANTIZATION.sub("", name)) != name:
        name = shorter
    return name


def is_first_part(path: Path) -> bool:
    """Whether a file is whole, or the first part of a split model."""
    part = _PART.search(path.name)
    return part is None or int(part[1]) == 1


def _expanded(text: str) -> Path:
    """A path with the user's home in place of ~, which stays where the system knows no home."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  pathlib's raises RuntimeError then


def _names(folder: Path, pattern: str) -> list[str]:
    return sorted(each.name for each in _paths(folder, pattern))


def _paths(folder: Path, pattern: str) -> list[Path]:
    """What a folder has; nothing if it cannot be read, or if no folder can have its name."""
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def _unknown(name: str, expected: str, wanted: str, known: Iterable[str]) -> ModelFileError:
    names = list(known)
    listed = ", ".join(names[:MOST_LISTED])
    if len(names) > MOST_LISTED:
        listed += f" and {len(names) - MOST_LISTED} more"
    return ModelFileError(name, None, expected, f"{listed or 'none'}{nearest(wanted, names)}")


_SCHEMES = {"hf": _hugging_face, "ollama": _ollama, "lmstudio": _lm_studio}
