"""The names that the modules of transformers have in a model file, and the order of their rows there."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from backbay import DType, ModelFileError
from backbay.gguf import ModelFile, text, whole

from ..arrays import LazyArray
from .changes import transposed
from .config_json import Settings, read_settings
from .families import FAMILIES, family_of
from .family_mapping import Family
from .folder_tensors import family_name
from .tensor_names import TensorNames

ARCHITECTURE = text("general.architecture")
STATED: Final = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "num_hidden_layers": "block_count",
}
"""The names in a configuration of values that decide on the order of rows, and their keys in a model file."""


class ModuleLookup:
    """Finds a module's matrix in a model, which is a folder, or a file that was made of one."""

    def __init__(self, model: ModelFile) -> None:
        self._path = model.path
        if model.path.is_dir():
            self._settings = read_settings(model.path)
            self._family = family_of(self._settings)
        else:
            self._family, self._settings = _of_file(model)
        if self._family.prepare is not Family("").prepare:
            raise self._refuse(f"{self._settings.architecture}, whose weights change together")
        self._names = TensorNames(self._family, self._settings)

    def of(self, name: str, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The matrices that the rows of a module's weight become, such as a product's left factor, by their names."""
        own = family_name(name, self._family)
        if self._family.change_of(own) is transposed:  # a module that holds its weight the other way round
            return {self._names.of(own): rows}
        array = _array(rows)
        try:
            changed = self._family.changed(own, array, self._settings)
            found = {self._names.of(each): made.whole(_no_file) for each, made in changed.items()}
        except (ValueError, IndexError, ZeroDivisionError, AssertionError) as error:
            if isinstance(error, ModelFileError) and self._path.is_dir():
                raise
            raise self._refuse(repr(name)) from error  # a file tells less than a folder
        return {each: np.asarray(made, rows.dtype) for each, made in found.items()}

    def _refuse(self, found: str) -> ModelFileError:
        expected = "modules whose rows alone are in another order in a model file; convert the adapter to GGUF with llama.cpp"
        return ModelFileError(self._path, None, expected, found)


def _of_file(model: ModelFile) -> tuple[Family, Settings]:
    """The family and the configuration of the model that a file was made of, as far as its metadata tell."""
    name, values = ARCHITECTURE.of(model.metadata), dict[str, Any]()
    for own, key in STATED.items():
        full = f"{name}.{key}"
        if full in model.metadata and np.ndim(model.metadata[full]) == 0:
            values[own] = whole(full).of(model.metadata)
    for kind, known in FAMILIES.items():
        settings = Settings(model.path, values, kind)
        try:
            family = known if isinstance(known, Family) else known(settings)
        except ModelFileError:  # it asks for values that a file of this architecture does not tell
            continue
        if family.architecture == name:
            return family, settings
    expected = "an adapter in GGUF: for this architecture, no module of transformers is known"
    raise ModelFileError(model.path, None, expected, f"a folder of PEFT for {name!r}")


def _array(rows: NDArray[Any]) -> LazyArray:
    dtype = DType.F16 if rows.dtype == np.float16 else DType.F32
    return LazyArray(rows.shape, dtype, (), lambda _, begin, end: rows[begin:end])


def _no_file(_: object) -> NDArray[np.uint8]:
    raise ValueError("factors are in memory")
