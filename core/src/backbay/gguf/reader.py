"""An open model, of one file or several."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import MappingProxyType, TracebackType
from typing import Self, TypeAlias, final

import numpy as np
import numpy.typing as npt

from backbay.errors import ClosedError, ModelFileError

from .config import Config
from .experts import stack_experts, write_stack
from .part import Part
from .split import all_tensors, read_parts
from .suggestions import nearest
from .tensors import TensorInfo

Files: TypeAlias = Mapping[Path, npt.NDArray[np.uint8]]


@final
class ModelFile:
    """An open model. The whole header is checked; the weights are mapped, and read on access.

    Several threads may read. `close` releases the weights; arrays that `data` returned before stay valid, and keep
    their file mapped, until they are dropped. `metadata` still works after `close`.

    Old files have a matrix for each expert: `tensors` has one stack of them instead, with the name that it has in
    newer files. The first `data` of a stack writes it to a temporary file.
    """

    def __init__(self, path: Path, parts: list[Part]) -> None:
        first = parts[0]
        self.path = path
        self.paths = tuple(part.path for part in parts)
        self.version, self.alignment = first.version, first.alignment
        self.metadata: Config = first.metadata
        tensors, self._stacks = stack_experts(all_tensors(parts))
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self._content: dict[Path, npt.NDArray[np.uint8]] | None = {part.path: part.content for part in parts}
        self._stacked: dict[str, npt.NDArray[np.uint8]] = {}
        self._stacking = Lock()

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor as stored in the file: a read-only view, not a copy."""
        files = self._content
        if files is None:
            raise ClosedError(f"{self.path}: the model file is closed")
        info = self.tensors.get(name)
        if info is None:
            found = f"{len(self.tensors)} others{nearest(name, self.tensors)}"
            raise ModelFileError(self.path, None, f"a tensor {name!r}", found)
        if name in self._stacks:
            return self._stack(name, files)
        return _bytes_of(info, files)

    @property
    def closed(self) -> bool:
        return self._content is None

    def close(self) -> None:
        # The maps are dropped, not closed: a map lives as long as the last array that views it.
        self._content = None
        self._stacked = {}

    def _stack(self, name: str, files: Files) -> npt.NDArray[np.uint8]:
        with self._stacking:
            if name not in self._stacked:
                parts = (_bytes_of(info, files) for info in self._stacks[name])
                self._stacked[name] = write_stack(self.path, name, parts)
            return self._stacked[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.tensors)} tensors, {len(self.metadata)} keys"
        return f"<ModelFile {str(self.path)!r}: {state}>"


def _bytes_of(info: TensorInfo, files: Files) -> npt.NDArray[np.uint8]:
    return files[info.path][info.offset : info.offset + info.nbytes]


def open(path: str | os.PathLike[str]) -> ModelFile:
    """Open a GGUF file; for a part of a split model, all parts. Any defect raises ModelFileError."""
    where = Path(path)
    return ModelFile(where, read_parts(where))
