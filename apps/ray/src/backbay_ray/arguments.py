"""Arguments of the application, as the file for `serve deploy` or the command line of `serve run` give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias, final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from backbay import OptionError
from backbay_server import ServerSettings
from backbay_server.remote import read_keys

Count: TypeAlias = Annotated[int, Meta(ge=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0)]


@final
class ReplicaScale(Struct, frozen=True, forbid_unknown_fields=True):
    """How many replicas there are: as many as the requests that run and wait need.

    upscale_delay, downscale_delay  seconds for which more, or fewer, must be needed
    """

    min: Annotated[int, Meta(ge=0)]
    max: Count
    upscale_delay: Annotated[float, Meta(ge=0)] = 30.0
    downscale_delay: Annotated[float, Meta(ge=0)] = 600.0


@final
class DeploymentArguments(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is served, and by how many. The fields that `Settings` has too mean the same.

    replicas      of each model: a number, or a range
    cpus, gpus    of each replica; a model's threads are as many as its CPUs
    ingresses     processes that answer HTTP
    retries       replicas that a request may lose one after the other without a new token
    drain         seconds for which an ingress that is to end goes on with its answers
    api_key_file  keys, one on a line; a file of each machine
    max_body      most MiB of a request's body
    """

    models: list[str] | str
    aliases: dict[str, str] = {}
    backend: str | None = None
    options: dict[str, str] = {}
    parallel: Count = ServerSettings.parallel
    context: Annotated[int, Meta(ge=2)] | None = None
    queue: Count = ServerSettings.queue
    replicas: Count | ReplicaScale = 1
    cpus: Annotated[float, Meta(gt=0)] = 1.0
    gpus: Annotated[float, Meta(ge=0)] = 0.0
    ingresses: Count = 1
    retries: Annotated[int, Meta(ge=0)] = 3
    drain: Seconds = 600.0
    api_key_file: str | None = None
    hosts: list[str] = []
    origins: list[str] = []
    picture_hosts: list[str] = []
    allow_rows: bool = False
    max_body: Count = ServerSettings.max_body >> 20
    metrics: bool = True
    page: bool = True

    def settings(self) -> ServerSettings:
        """The settings of applications and replicas."""
        given = {name: value for name, value in asdict(self).items() if hasattr(ServerSettings, name)}
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
        models = (self.models,) if isinstance(self.models, str) else tuple(self.models)
        changed = {
            "models": models,
            "threads": max(1, int(self.cpus)),
            "max_loaded": max(1, len(models) + len(self.aliases)),
            "max_body": self.max_body << 20,
            "drain_seconds": self.drain,
        }
        return ServerSettings(**{**given, "aliases": self.aliases, "options": self.options, **changed})

    def keys(self) -> tuple[str, ...]:
        """The keys of this machine's file."""
        return () if self.api_key_file is None else read_keys(Path(self.api_key_file))


def check_arguments(given: Mapping[str, Any]) -> DeploymentArguments:
    """Arguments, checked; those of a command line are texts."""
    try:
        found = msgspec.convert(dict(given), DeploymentArguments, strict=False)
    except msgspec.ValidationError as error:
        raise OptionError(f"arguments of backbay_ray:app: {error}") from None
    if isinstance(found.replicas, ReplicaScale) and found.replicas.max < found.replicas.min:
        raise OptionError(f"replicas: max is {found.replicas.max}, and min is {found.replicas.min}")
    return found
