"""What follows a model of vectors: pooling and matrices, from the files of sentence-transformers."""

from __future__ import annotations

from pathlib import Path

from backbay import ModelFileError
from backbay.gguf import Content

from .arrays import stored_array
from .family import Arrays
from .json_files import parse, read_bytes, read_object
from .safetensors import read_checkpoint
from .settings import Keys

MODULES = "modules.json"
MODES = {"mean": 1, "cls": 2, "lasttoken": 3}
"""The numbers of llama.cpp."""
FLAGS = {"pooling_mode_mean_tokens": 1, "pooling_mode_cls_token": 2, "pooling_mode_lasttoken": 3}
DENSE = "dense_2", "dense_3"
"""The names of the matrices in model files."""


def pooling_keys(folder: Path) -> Keys:
    """How the model pools; no key if no file says it."""
    at = next(iter(_modules(folder, "Pooling")), None)
    if at is None:
        return {}
    said = read_object(at / "config.json")
    found = next((number for flag, number in FLAGS.items() if said.get(flag) is True), None)
    found = found or MODES.get(str(said.get("pooling_mode")))
    if found is None:
        raise ModelFileError(at / "config.json", None, "pooling by mean, cls or lasttoken", "another one")
    return {"pooling_type": found}


def dense_arrays(folder: Path) -> tuple[Arrays, Keys, list[Content]]:
    """The matrices that vectors pass last, with their keys and the files that hold them."""
    arrays, keys, contents = Arrays(), Keys(), list[Content]()
    places = _modules(folder, "Dense")
    if len(places) > len(DENSE):
        raise ModelFileError(folder / MODULES, None, f"at most {len(DENSE)} dense layers", len(places))
    for name, at in zip(DENSE, places, strict=False):
        said = read_object(at / "config.json")
        kind = str(said.get("activation_function", "Tanh")).rpartition(".")[2]
        checkpoint = read_checkpoint(at)
        weight = checkpoint.tensors.get("linear.weight")
        plain = kind == "Identity" and "linear.bias" not in checkpoint.tensors
        if weight is None or not plain or not weight.info.dtype.is_float or len(weight.info.shape) != 2:
            expected = "a matrix linear.weight, without a bias and an activation"
            raise ModelFileError(at, None, expected, f"{', '.join(checkpoint.tensors)} with {kind}")
        arrays[f"{name}.weight"] = stored_array(weight.info).floats()
        keys |= {f"{name}_feat_in": weight.info.shape[0], f"{name}_feat_out": weight.info.shape[1]}
        contents += checkpoint.contents
    return arrays, keys, contents


def _modules(folder: Path, kind: str) -> list[Path]:
    """The folders of the modules of a kind, in order."""
    path = folder / MODULES
    if not path.exists():
        return []
    modules = parse(path, read_bytes(path))
    found = []
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, dict) and str(module.get("type", "")).endswith(kind):
            at = Path(str(module.get("path", "")))
            if at.is_absolute() or ".." in at.parts or "\0" in str(at):
                raise ModelFileError(path, None, "a path within the folder", repr(str(at))[:200])
            found.append(folder / at)
    return found
