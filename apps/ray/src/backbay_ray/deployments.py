"""Ray Serve's application: an ingress, which is the server's own application, and replicas of each model.

Ray is imported where it is used: it takes seconds, and tests of the rest need none.
"""

# Ray may be missing where types are checked:
# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import re
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from backbay import OptionError
from backbay_engine import LLM
from backbay_engine.remote import RemotePort
from backbay_server import ServerSettings
from backbay_server.remote import Catalogue, CatalogueEntry, build_application

from .arguments import DeploymentArguments, ReplicaScale, check_arguments
from .link import RayLink
from .replica import Replica
from .same_model import fingerprint

if TYPE_CHECKING:
    from ray.serve import Application, Deployment

OPEN_STREAMS: Final = 1 << 14  # of an ingress
SPARE: Final = 1  # requests that a replica holds beside those that run: no sequence waits for the next one
HEALTH_PERIOD, HEALTH_TIMEOUT = 2.0, 30.0  # seconds
LEAVING: Final = 60.0  # seconds for a replica that is to end; then its answers go on in others
ROUTER: Final = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
FALLBACKS: Final = 8  # replicas that are tried after that of a session, while it has no room


def app(args: Mapping[str, Any]) -> Application:
    """The application for `serve run backbay_ray:app models=...`, and for files of `serve deploy`."""
    arguments = check_arguments(args)
    settings = arguments.settings()
    catalogue = Catalogue(settings.models, (), settings.aliases)
    if not catalogue.named:
        raise OptionError("name a model: models=FILE")
    _require_distinct(catalogue.named)
    engines = [_engine(arguments, settings, entry) for entry in catalogue.named]
    return _ingress(arguments, settings).bind(*engines)


def deployment_name(entry: CatalogueEntry) -> str:
    """The name of a model's deployment, as files and metrics have it."""
    return f"Engine-{re.sub(r'[^A-Za-z0-9._-]', '-', entry.name)}"


def _require_distinct(entries: Sequence[CatalogueEntry]) -> None:
    """OptionError if two models would have deployments of one name: Ray Serve would rename one of them in silence."""
    taken = dict[str, CatalogueEntry]()
    for entry in entries:
        other = taken.setdefault(deployment_name(entry), entry)
        if other is not entry:
            raise OptionError(
                f"the models {other.name!r} and {entry.name!r} would both be the deployment "
                f"{deployment_name(entry)}; give one of them another name by aliases: {{NAME: {entry.path}}}, "
                "and leave it out of models"
            )


def _engine(arguments: DeploymentArguments, settings: ServerSettings, entry: CatalogueEntry) -> Application:
    """The replicas of a model."""
    from ray.serve import deployment
    from ray.serve.config import RequestRouterConfig

    from .reports import gauge_setter

    replicas = deployment(
        name=deployment_name(entry),
        **_number(arguments),
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        max_ongoing_requests=arguments.parallel + SPARE,
        max_queued_requests=arguments.queue,
        health_check_period_s=HEALTH_PERIOD,
        health_check_timeout_s=HEALTH_TIMEOUT,
        graceful_shutdown_timeout_s=LEAVING,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, request_router_kwargs={"num_fallback_replicas": FALLBACKS}
        ),
    )(Replica)
    return replicas.bind(settings, entry.name, fingerprint(entry.path, entry.projector), gauge_setter)


def _number(arguments: DeploymentArguments) -> dict[str, Any]:
    """The number of replicas. Requests that wait count, so more than a replica's sequences ask for another replica."""
    if not isinstance(arguments.replicas, ReplicaScale):
        return {"num_replicas": arguments.replicas}
    scale = arguments.replicas
    return {
        "autoscaling_config": {
            "min_replicas": scale.min,
            "max_replicas": scale.max,
            "target_ongoing_requests": arguments.parallel,
            "upscale_delay_s": scale.upscale_delay,
            "downscale_delay_s": scale.downscale_delay,
            "look_back_period_s": max(1.0, min(30.0, scale.upscale_delay)),
        }
    }


def _ingress(arguments: DeploymentArguments, settings: ServerSettings) -> Deployment:
    """The server's own application, which asks replicas."""
    from ray.serve import deployment, ingress

    def build() -> Any:
        from .reports import share_logs

        share_logs()
        loop = asyncio.get_running_loop()
        return build_application(
            replace(settings, keys=arguments.keys()), partial(_load, settings, arguments.retries, loop)
        )

    return deployment(
        name="Ingress",
        num_replicas=arguments.ingresses,
        ray_actor_options={"num_cpus": 0.5},
        max_ongoing_requests=OPEN_STREAMS,
        graceful_shutdown_timeout_s=arguments.drain,
    )(ingress(build)())


def _load(
    settings: ServerSettings,
    retries: int,
    loop: AbstractEventLoop,
    entry: CatalogueEntry,
    progress: Callable[[float], None],
    cancel: Event,
) -> LLM:
    """A model whose steps run in replicas; waits until one is there."""
    from ray.serve import get_deployment_handle

    from .ray_serve import RayServeTransport

    named = {each.path: each for each in Catalogue(settings.models, (), settings.aliases).named}
    replicas = RayServeTransport(get_deployment_handle(deployment_name(named[entry.path])))
    port = RemotePort(RayLink(replicas, loop, entry.name, retries), settings.parallel)
    port.load(progress, cancel)
    return LLM(port)
