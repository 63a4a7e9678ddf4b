"""An open model, of one file or several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Self, final

import numpy as np

from backbay.errors import ClosedError, ModelFileError, OptionError, nearest

from .config import Config
from .content import Content
from .header import DEFAULT_ALIGNMENT, Bytes, Derived, TensorInfo, all_tensors, read_parts
from .weight_copies import WeightMemory, join_bytes, stack_experts

CHUNK = 1 << 24  # bytes of a part of a tensor, about


@final
class ModelFile:
    """An open model. The whole header is checked; the weights are mapped, and read on access.

    Several threads may read. `close` releases the weights; arrays that `data` returned before stay valid, and keep
    their file mapped, until they are dropped. `metadata` still works after `close`.

    Replacing or deleting the file is harmless. If its bytes change, `data` and `check_unchanged` raise ModelFileError;
    arrays from before must not be read any more. After `copy_weights`, weights lie in memory of their own instead.

    Tensors that are `derived` are made of others when they are first asked for. Old files have a matrix for each
    expert: `tensors` has one stack of them instead, with the name that it has in newer files, in a temporary file.
    Other formats can be opened too, by who knows how their tensors are derived.
    """

    def __init__(
        self,
        path: Path,
        contents: Iterable[Content],
        metadata: Config,
        tensors: Mapping[str, TensorInfo],
        derived: Mapping[str, Derived],
        *,
        version: int = 0,
        alignment: int = DEFAULT_ALIGNMENT,
    ) -> None:
        """Made by `open`. The version is that of the GGUF format, 0 for another format."""
        self._contents = {content.path: content for content in contents}
        self.path, self.paths = path, tuple(self._contents)
        self.version, self.alignment = version, alignment
        self.metadata: Config = metadata
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(dict(tensors))
        self.closed = False
        self._derived = dict(derived)
        self._copies: WeightMemory | None = None
        self._made: dict[str, Bytes] = {}
        self._making = Lock()

    @property
    def derived_nbytes(self) -> int:
        """The bytes of memory that tensors will take because the files hold them in another form."""
        held = (name for name, derived in self._derived.items() if derived.stored is None)
        return sum(self.tensors[name].nbytes for name in held)

    def data(self, name: str) -> Bytes:
        """The bytes of a tensor as stored in the file, read-only: a view of the file, or of the tensor's copy."""
        info = self.tensors.get(name)
        if info is None:
            found = f"{len(self.tensors)} others{nearest(name, self.tensors)}"
            raise ModelFileError(self.path, None, f"a tensor {name!r}", found)
        contents, copies = self._contents, self._copies
        if self.closed:
            raise ClosedError(f"{self.path}: the model file is closed")
        derived = self._derived.get(name)
        if copies is not None:
            return copies.data(info, derived, contents)
        for each in {part.path for part in ((info,) if derived is None else derived.parts)}:
            contents[each].check()
        return _mapped(info, contents) if derived is None else self._make(info, derived, contents)

    def chunks(self, name: str) -> Iterator[Bytes]:
        """The bytes of a tensor in parts, each of whole rows; nothing of them is kept."""
        info, derived = self.tensors[name], self._derived.get(name)
        if derived is not None and derived.stored is None and self._copies is None and not self.closed:
            for part in derived.parts:
                self._contents[part.path].check()
            yield from derived.chunks(lambda part: _mapped(part, self._contents))
            return
        data = self.data(name)
        row = info.dtype.row_size(info.shape[0]) if info.shape else info.nbytes
        step = max(CHUNK // row, 1) * row if row else 1
        for begin in range(0, data.size, step):
            yield data[begin : begin + step]
        self.drop_pages(name)

    def check_unchanged(self) -> None:
        """Raise ModelFileError if the file, or a part, changed since it was opened, and its bytes may still be read."""
        for content in self._contents.values():
            content.check()

    def copy_weights(self) -> None:
        """Keep weights in memory of their own from now on: `data` reads each of them once, when it is asked for.

        MemoryError if the system has no room. Arrays that `data` returned before still view the file.
        """
        if self._copies is None:
            self._copies = WeightMemory(self.tensors.values())

    def read_copies(self) -> Iterator[float]:
        """Read all weights that were not read yet, then let go of the file; gives the part that is done."""
        total, done = sum(info.nbytes for info in self.tensors.values()) or 1, 0
        for name, info in self.tensors.items():
            self.data(name)
            done += info.nbytes
            yield done / total
        self._contents = {}

    def drop_pages(self, name: str) -> None:
        """Let the system drop the pages of a weight that the caller holds in another form; a later read loads them again."""
        if self._copies is None and name not in self._derived and not self.closed:
            info = self.tensors[name]
            self._contents[info.path].drop_pages(info.offset, info.nbytes)

    def close(self) -> None:
        # The maps are dropped, not closed: a map lives as long as the last array that views it.
        self.closed = True
        self._contents, self._copies, self._made = {}, None, {}

    def _make(self, info: TensorInfo, derived: Derived, contents: Mapping[Path, Content]) -> Bytes:
        with self._making:
            if info.name not in self._made:
                chunks = derived.chunks(lambda part: _mapped(part, contents))
                if derived.stored is not None:
                    made = derived.stored(chunks)
                else:
                    made = np.empty(info.nbytes, np.uint8)
                    join_bytes(chunks, made)
                    made.flags.writeable = False
                self._made[info.name] = made
            return self._made[info.name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self.tensors)} tensors, {len(self.metadata)} keys"
        return f"<ModelFile {str(self.path)!r}: {state}>"


def _mapped(info: TensorInfo, contents: Mapping[Path, Content]) -> Bytes:
    return contents[info.path].mapped[info.offset : info.offset + info.nbytes]


def open(path: str | os.PathLike[str], only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a GGUF file; for a part of a split model, all parts. Any defect raises ModelFileError.

    `only` chooses tensors by name, where one file holds several models; the others are checked, then left out.
    """
    try:
        text: object = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text:
        rule = "must be a text or an os.PathLike of one, not empty"
        raise OptionError(f"the path of a model file {rule}, got {path!r}")
    where = Path(text)
    parts = read_parts(where)
    wanted = {name: info for name, info in all_tensors(parts).items() if only is None or only(name)}
    tensors, derived = stack_experts(where, wanted)
    first, contents = parts[0], [part.content for part in parts]
    versions = {"version": first.version, "alignment": first.alignment}
    return ModelFile(where, contents, first.metadata, tensors, derived, **versions)
