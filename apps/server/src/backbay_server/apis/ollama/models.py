"""The endpoints that tell which models there are."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from math import prod
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from backbay import BackbayError
from backbay.discovery import open_model
from backbay.gguf import Config, Strings

from ...catalogue import CatalogueEntry, ModelPool, is_whisper
from ...catalogue.pool import PooledModel
from ...errors import ModelNotFoundError
from ...transport.answers import JSON_LINES, JsonResponse, StreamResponse, encode, json_line
from ..endpoint import Endpoint, EndpointCall
from .answers import (
    Model,
    ModelDetails,
    ModelList,
    PullStatus,
    RunningModel,
    RunningModels,
    ShownModel,
    Version,
)
from .conversations import name_of
from .requests import PullRequest, ShowRequest

Capability: TypeAlias = Literal["completion", "tools", "thinking", "vision", "embedding"]
NEVER: Final = "9999-12-31T23:59:59Z"  # models leave when their memory is wanted
_UNITS: Final = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))
_LONG: Final = 64  # longer lists are shown by `verbose` alone


async def version(call: EndpointCall, _: None) -> JsonResponse:
    """Give the version of the server, in Ollama's form."""
    return JsonResponse(Version(metadata.version("backbay")))


async def list_models(call: EndpointCall, _: None) -> JsonResponse:
    """List the models on offer, in Ollama's form."""
    return JsonResponse(ModelList(await asyncio.to_thread(_listed, call.services.pool)))


async def show_model(call: EndpointCall, body: ShowRequest) -> JsonResponse:
    """Show a model on offer, in Ollama's form."""
    entry = await asyncio.to_thread(call.services.catalogue.find, name_of(body))
    return JsonResponse(await asyncio.to_thread(_shown, entry, verbose=bool(body.verbose)))


async def pull_model(call: EndpointCall, body: PullRequest) -> JsonResponse | StreamResponse:
    """Say that a model on offer is there, in Ollama's form; nothing is fetched."""
    await asyncio.to_thread(call.services.catalogue.find, name_of(body))
    if body.stream is False:
        return JsonResponse(PullStatus("success"))

    async def steps() -> AsyncGenerator[bytes, None]:
        yield json_line(encode(PullStatus("pulling manifest")))
        yield json_line(encode(PullStatus("success")))

    return StreamResponse(steps(), JSON_LINES, json_line)


async def list_running_models(call: EndpointCall, _: None) -> JsonResponse:
    """List the models in memory, in Ollama's form."""
    return JsonResponse(RunningModels(await asyncio.to_thread(_running, [*call.services.pool.held()])))


def _listed(pool: ModelPool) -> list[Model]:
    return [
        Model(each.name, each.name, _time(each), _size(each), _digest(each), _details(each))
        for each in pool.listed()
    ]


def _running(loaded: Iterable[PooledModel]) -> list[RunningModel]:
    found = []
    for held in loaded:
        if held.llm is not None:
            name, size, digest = held.entry.name, _size(held.entry), _digest(held.entry)
            found.append(
                RunningModel(name, name, size, digest, _details(held.entry), NEVER, 0, held.llm.context)
            )
    return found


def _shown(entry: CatalogueEntry, *, verbose: bool) -> ShownModel:
    try:
        model = open_model(entry.path)
    except (BackbayError, OSError) as error:
        raise ModelNotFoundError(f"the model {entry.name!r} cannot be read: {error}") from None
    config = model.metadata
    template = config.get("tokenizer.chat_template", "")
    return ShownModel(
        modelfile=f"FROM {entry.name}",
        parameters="",
        template=template,
        details=_details(entry),
        model_info={
            key: _value(config[key], verbose=verbose) for key in config if key != "tokenizer.chat_template"
        },
        capabilities=_capabilities(entry, config, template),
        modified_at=_time(entry),
    )


def _capabilities(entry: CatalogueEntry, config: Config, template: str) -> list[Capability]:
    if f"{config.architecture}.pooling_type" in config:
        return ["embedding"]
    if is_whisper(config):
        return []  # it answers nobody
    found: list[Capability] = ["completion"]
    if "tools" in template:
        found.append("tools")
    if "</think>" in template:
        found.append("thinking")
    if _sees(entry.projector) or f"{config.architecture}.vision.block_count" in config:
        found.append("vision")
    return found


def _sees(projector: Path | None) -> bool:
    """Whether the encoder in a file is one of pictures, not of sound alone."""
    if projector is None:
        return False
    with suppress(BackbayError, OSError), open_model(projector) as file:
        return "clip.has_audio_encoder" not in file.metadata or "clip.has_vision_encoder" in file.metadata
    return False


def _value(value: Any, *, verbose: bool) -> Any:
    """A value of the metadata; null in place of long lists."""
    if isinstance(value, Strings | list | tuple | np.ndarray):
        hidden = len(value) > _LONG and not verbose
        return None if hidden else [_value(each, verbose=verbose) for each in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


# -- files -----------------------------------------------------------------------------------------------------


def _details(entry: CatalogueEntry) -> ModelDetails:
    return _details_of(entry.path, entry.stamp())


@lru_cache(maxsize=1024)
def _details_of(path: Path, _stamp: tuple[int, int, int] | None) -> ModelDetails:
    """What the header of a file says; it is read anew when the file changes."""
    try:
        model = open_model(path)
    except (BackbayError, OSError):
        return ModelDetails("", [], "", "")
    family, tensors = model.metadata.architecture, model.tensors.values()
    count = sum(prod(info.shape) for info in tensors)
    rounded = (f"{count / unit:.1f}{letter}" for unit, letter in _UNITS if count >= unit)
    dtypes = Counter(info.dtype.name for info in tensors if len(info.shape) > 1)
    return ModelDetails(
        family, [family], next(rounded, str(count)), max(dtypes, key=dtypes.__getitem__, default="")
    )


def _size(entry: CatalogueEntry) -> int:
    path = entry.path
    files = path.iterdir() if path.is_dir() else [path]
    try:
        return sum(each.stat().st_size for each in files if each.is_file())
    except OSError:
        return 0


def _digest(entry: CatalogueEntry) -> str:
    """Tells a file from its next version; the bytes of a model are too many to read for a list."""
    return hashlib.sha256(f"{entry.path} {entry.stamp()}".encode()).hexdigest()


def _time(entry: CatalogueEntry) -> str:
    return datetime.fromtimestamp(entry.created, UTC).isoformat()


ENDPOINTS: Final[tuple[Endpoint[Any], ...]] = (
    Endpoint("GET", "/api/version", version, answers=Version),
    Endpoint("GET", "/api/tags", list_models, answers=ModelList),
    Endpoint("POST", "/api/show", show_model, ShowRequest, ShownModel),
    Endpoint("POST", "/api/pull", pull_model, PullRequest, PullStatus, PullStatus, JSON_LINES),
    Endpoint("GET", "/api/ps", list_running_models, answers=RunningModels),
)
