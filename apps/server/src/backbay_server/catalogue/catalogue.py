"""The catalogue: models by the names under which clients ask for them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, final

from backbay import BackendParams, OptionError
from backbay.discovery import open_model
from backbay.gguf import Config, nearest
from backbay_engine import LLM, ModelPaths, RequestError, load, locate, models_in, projector_beside

from ..errors import ModelNotFoundError
from ..settings import ServerSettings

log = logging.getLogger(__name__)
FRESH = 1.0  # seconds for which a look at files and folders holds
SCHEMES = ("hf", "ollama", "lmstudio")
MOST_LETTERS = 256  # of a name
Stamp: TypeAlias = tuple[int, int, int]  # inode, bytes, time of change


@dataclass(frozen=True)
class CatalogueEntry:
    """A model on offer: its name for clients, its file or folder, and the file of its encoder of pictures.

    adapters  the names and files of its adapters
    adapter   the adapter that the name asks for, as in "base:sql"; empty: none
    backend   the further backend that the name asks for, as in "base@onnx"; empty: the server's first one
    """

    name: str
    path: Path
    projector: Path | None = None
    adapters: tuple[tuple[str, str], ...] = ()
    adapter: str = ""
    backend: str = ""

    @property
    def identity(self) -> tuple[Path, str]:
        """The file and the backend: entries with one identity share one model in memory."""
        return self.path, self.backend

    def on(self, backend: str) -> CatalogueEntry:
        """The model on a further backend."""
        return replace(self, name=f"{self.name}@{backend}", backend=backend)

    @property
    def whole(self) -> CatalogueEntry:
        """The model without the adapter in its name."""
        return (
            replace(self, name=self.name.removesuffix(f":{self.adapter}"), adapter="")
            if self.adapter
            else self
        )

    @property
    def adapted(self) -> list[CatalogueEntry]:
        """The model with each of its adapters."""
        return [replace(self, name=f"{self.name}:{adapter}", adapter=adapter) for adapter, _ in self.adapters]

    @property
    def created(self) -> int:
        """When the file was last written, in seconds since 1970; 0 if it is gone."""
        stamp = self.stamp()
        return stamp[2] // 10**9 if stamp is not None else 0

    def stamp(self) -> Stamp | None:
        """What changes when the file is replaced or written to; None if the file is gone."""
        path = self.path / "config.json" if self.path.is_dir() else self.path
        try:
            found = path.stat()
        except OSError:
            return None
        return (found.st_ino, found.st_size, found.st_mtime_ns)


def load_entry(settings: ServerSettings, entry: CatalogueEntry, **own: Any) -> LLM:
    """The model of an entry; `own` are further arguments of `load`. The options are those of the first backend.

    With `speculate`, a model that cannot guess tokens is loaded to guess none.
    """

    def loaded(**guessing: Any) -> LLM:
        return load(
            entry.path,
            entry.backend or settings.backend,
            context=_context(settings.context, entry.path),
            parallel=settings.parallel,
            kv_dtype=settings.kv_dtype,
            params=BackendParams(options={} if entry.backend else settings.options),
            num_threads=settings.threads,
            num_gpu_layers=settings.gpu_layers,
            main_gpu=settings.main_gpu,
            tensor_split=settings.tensor_split,
            projector=entry.projector,
            adapters=dict(entry.adapters),
            **guessing,
            **own,
        )

    if settings.speculate is not None:
        try:
            return loaded(speculate=settings.speculate)
        except RequestError as error:
            log.warning("%s: %s", entry.name, error)
    return loaded(draft=settings.draft)


def _context(asked: int | None, path: Path) -> int | None:
    """The tokens of each request; a Whisper has no more than it has learned, whatever the other models are given."""
    if asked is None:
        return None
    with open_model(path) as file:
        keys = file.metadata
        return min(asked, keys.int(f"{keys.architecture}.context_length")) if is_whisper(keys) else asked


def is_whisper(keys: Config) -> bool:
    """Whether these are the keys of a Whisper, which writes transcripts, and nothing else."""
    return f"{keys.architecture}.audio.block_count" in keys


@final
class Catalogue:
    """Models named one by one, aliases of theirs, and the models in folders, which may come and go; as in Settings.

    Each model is also on offer as NAME@BACKEND for each further backend.
    """

    def __init__(
        self,
        models: Sequence[str],
        folders: Sequence[str] = (),
        aliases: Mapping[str, str] | None = None,
        adapters: Mapping[str, str] | None = None,
        further_backends: Sequence[str] = (),
    ) -> None:
        self._further_backends = further_backends
        self._folders = tuple(Path(folder) for folder in folders)
        self._named = _by_name(_located(model) for model in models)
        self._lock, self._found, self._listed_at = Lock(), dict[str, CatalogueEntry](), -FRESH
        for folder in self._folders:
            models_in(folder)  # raises if it cannot be read
        self._aliases: dict[str, CatalogueEntry] = {}
        for name, model in (aliases or {}).items():
            if name in self._named:
                raise OptionError(f"the alias {name!r} is the name of a model already; take another")
            found = self._lookup(model)  # None: the file is on offer by the alias only
            self._aliases[name] = (
                CatalogueEntry(name, *_files(model)) if found is None else replace(found, name=name)
            )
        for name, file in (adapters or {}).items():
            model, _, adapter = name.rpartition(":")
            self._add_adapter(model, adapter, file)

    @property
    def named(self) -> list[CatalogueEntry]:
        """The models that were named one by one, without those in folders."""
        plain = {each.path: each for each in (*self._aliases.values(), *self._named.values())}.values()
        return [*plain, *(each.on(backend) for backend in self._further_backends for each in plain)]

    def named_so(self, name: str) -> CatalogueEntry | None:
        """The model that was named so, or has the alias; without looking into folders."""
        return self._aliases.get(name) or self._named.get(name)

    def listed(self) -> list[CatalogueEntry]:
        """All models, by name; files in folders that are gone are not among them."""
        plain = [*self._named.values(), *self._aliases.values(), *self._in_folders().values()]
        whole = [at for each in plain for at in (each, *map(each.on, self._further_backends))]
        return [*whole, *(adapted for each in whole for adapted in each.adapted)]

    def find(self, name: str) -> CatalogueEntry:
        """The model that a client asks for; ModelNotFoundError if there is none."""
        found = None if len(name) > MOST_LETTERS else self._lookup(name)
        if found is None:
            name = name[:MOST_LETTERS]
            known = [each.name for each in self.listed()]
            raise ModelNotFoundError(f"the model {name!r} does not exist{nearest(name, known)}")
        return found

    def _lookup(self, name: str) -> CatalogueEntry | None:
        tagged = f"{name}:latest"  # Ollama's clients leave out the tag
        listed = self._in_folders()
        found = self.named_so(name) or self.named_so(tagged) or listed.get(name) or listed.get(tagged)
        found = found or self._on_further_backend(name)
        base, _, adapter = name.rpartition(":")
        if found is not None or not base:
            return found
        whole = self._lookup(base)
        return None if whole is None else next((e for e in whole.adapted if e.adapter == adapter), None)

    def _on_further_backend(self, name: str) -> CatalogueEntry | None:
        """The model of NAME@BACKEND; None if that is not on offer."""
        plain, _, backend = name.rpartition("@")
        found = self._lookup(plain) if plain and backend in self._further_backends else None
        return None if found is None or found.backend or found.adapter else found.on(backend)

    def _add_adapter(self, model: str, name: str, file: str) -> None:
        """Offer a model, and its aliases, with an adapter too."""
        paths = {each.path for each in self.named}
        if model:
            found = self.named_so(model)
            paths &= set() if found is None else {found.path}
        if len(paths) != 1:
            wanted = (
                f"the model {model!r} is not one that is named"
                if model
                else "there are several models, or none"
            )
            raise OptionError(f"the adapter {name!r}: {wanted}; give MODEL:NAME=FILE, with the name of one")
        if not Path(file).exists():
            raise OptionError(f"the adapter {name!r}: there is no file or folder {file!r}")
        for entries in (self._named, self._aliases):
            for own, entry in entries.items():
                if entry.path in paths:
                    entries[own] = replace(entry, adapters=(*entry.adapters, (name, file)))

    def _in_folders(self) -> dict[str, CatalogueEntry]:
        """The models in the folders, listed anew if the last listing is old."""
        with self._lock:
            if time.monotonic() - self._listed_at >= FRESH:
                self._found = {}
                for folder in self._folders:
                    with suppress(ValueError, OSError):  # it cannot be read at the moment
                        for name, located in models_in(folder).items():
                            self._found.setdefault(
                                name, CatalogueEntry(name, Path(located.path), located.projector)
                            )
                self._listed_at = time.monotonic()
            return self._found


def _located(model: str) -> CatalogueEntry:
    scheme, colon, rest = model.partition(":")
    path, projector = _files(model)
    if colon and scheme in SCHEMES and not os.path.exists(model):  # noqa: PTH110  the text may be no path
        tag = ":latest" if scheme == "ollama" and ":" not in rest else ""
        return CatalogueEntry(rest + tag, path, projector)
    return CatalogueEntry(ModelPaths(path).stem, path, projector)


def _files(model: str) -> tuple[Path, Path | None]:
    found = locate(model)
    path = Path(found.path)
    if not path.exists():
        raise OptionError(f"there is no model {model!r}: no such file, folder, or name in a known place")
    beside = projector_beside(path) if path.is_file() else None
    return path, found.projector or beside


def _by_name(entries: Iterable[CatalogueEntry]) -> dict[str, CatalogueEntry]:
    found: dict[str, CatalogueEntry] = {}
    for each in entries:
        if each.name in found and found[each.name].path != each.path:
            raise OptionError(
                f"{found[each.name].path} and {each.path} have the same name {each.name!r}; "
                f"name one only by --alias NAME={each.path}"
            )
        found.setdefault(each.name, each)
    return found
