"""The execution provider that is judged: found by its name or its library, and sessions that run on it alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from backbay import BackbayError, BackendUnavailableError, OptionError, RefusalError

from ..session.providers import HOST_PROVIDER
from ..session.runtime import load_runtime, translate_errors
from ..session.session import DISABLED
from .node_separation import INNER, separate_nodes

BUILTIN = "builtin:"
PATHS = ("get_library_path", "library_path")  # functions of packages that bring a provider


@dataclass(frozen=True)
class Provider:
    """A provider by its name in ONNX Runtime; `devices` are those of a plugin, which a session must name."""

    name: str
    title: str
    devices: tuple[Any, ...] = ()

    def session(self, model: bytes, threads: int) -> Any:
        """A session that runs all nodes on the provider; RefusalError, with the nodes that it leaves to others."""
        try:
            with translate_errors(f"creating a session on {self.name}"):
                session = self._session(model, threads, fallback=False)
        except BackbayError:
            if left := self._left_ops(model, threads):
                raise RefusalError(self._reason(left, model, threads)) from None
            raise
        assigned = assignment(session)
        if not assigned:
            raise RefusalError(f"ONNX Runtime finds a constant, and leaves no node to {self.name}")
        if declined := ", ".join(self._others(assigned)):
            raise RefusalError(
                f"{self.name} has declined {declined} in silence: ONNX Runtime would run it elsewhere"
            )
        return session

    def _others(self, assigned: Iterable[tuple[str, str]]) -> list[str]:
        """The ops that are assigned to others."""
        return [*dict.fromkeys(op for owner, op in assigned if owner != self.name)]

    def _left_ops(self, model: bytes, threads: int) -> list[str]:
        """The ops that the provider leaves to others in a session that allows it; none if there is no such session."""
        try:
            with translate_errors("creating a session with a fallback"):
                return self._others(assignment(self._session(model, threads, fallback=True)))
        except BackbayError:
            return []

    def _reason(self, left: list[str], model: bytes, threads: int) -> str:
        """Why a model is refused. A provider may leave, with a node that it does not take, all nodes around it."""
        alone = self._left_ops(separate_nodes(model), threads) if len(left) > 1 else left
        refused = [op for op in left if op in alone]
        return f"{self.name} does not take {', '.join(refused or left)}"

    def _session(self, model: bytes, threads: int, *, fallback: bool) -> Any:
        ort = load_runtime()
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if not fallback and self.name != HOST_PROVIDER.name:
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if self.devices:
            options.add_provider_for_devices(list(self.devices), {})
        named = None if self.devices else [self.name]
        return ort.InferenceSession(
            model, options, providers=named, enable_fallback=0, disabled_optimizers=DISABLED
        )


def assignment(session: Any) -> list[tuple[str, str]]:
    """The provider and the op of each node of a session, as ONNX Runtime has recorded them; a loop is one node."""
    parts = session.get_provider_graph_assignment_info()
    nodes = [(part.ep_name, node) for part in parts for node in part.get_nodes()]
    return [(owner, node.op_type) for owner, node in nodes if not node.name.startswith(INNER)]


@cache
def find_provider(ep: str) -> Provider:
    """The provider that the option `ep` names; a plugin's library is registered, once for the process."""
    ort = load_runtime()
    if ep.startswith(BUILTIN):
        name = ep.removeprefix(BUILTIN)
        if name not in ort.get_available_providers():
            has = ", ".join(ort.get_available_providers())
            raise BackendUnavailableError(f"this ONNX Runtime has no {name}; it has {has}")
        return Provider(name, f"{name} of ONNX Runtime {ort.__version__}")
    path, version = _library(ep)
    before = {device.ep_name for device in ort.get_ep_devices()}
    with translate_errors(f"registering {path}"):
        ort.register_execution_provider_library(Path(ep).stem, str(path))
    devices = [device for device in ort.get_ep_devices() if device.ep_name not in before]
    if not devices:
        raise BackendUnavailableError(
            f"{ep}: ONNX Runtime has registered {path}, but the provider reports no device on this machine"
        )
    first = devices[0]
    own = tuple(device for device in devices if device.ep_name == first.ep_name)[:1]
    return Provider(
        first.ep_name, f"{first.ep_name} {version} in ONNX Runtime {ort.__version__}".replace("  ", " "), own
    )


def _library(ep: str) -> tuple[Path, str]:
    """The library of a package or at a path, and the package's version."""
    if Path(ep).is_file():
        return Path(ep).resolve(), ""
    try:
        package = import_module(ep)
    except ImportError as error:
        told = f"option ep: {ep!r} is neither a library's file, nor a package ({error}), nor {BUILTIN}NAME"
        raise OptionError(told) from error
    for name in PATHS:
        if hasattr(package, name):
            return Path(getattr(package, name)()), metadata.version(ep.replace("_", "-"))
    raise OptionError(f"option ep: the package {ep} has none of the functions {', '.join(PATHS)}")
