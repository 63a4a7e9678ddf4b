"""The lab of a run, with the backend under test, and scenarios: checks beyond single calls, each a function of a lab."""

from __future__ import annotations

import platform
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import backbay
from backbay import (
    BackbayError,
    Backend,
    BackendParams,
    BackendUnavailableError,
    Context,
    ContractVersion,
    Debug,
    DeviceInfo,
    GPULayers,
    GPULayersList,
    OptionError,
    UnknownBackendError,
    gguf,
)
from backbay.cli import next_kernels
from backbay.discovery import entry
from backbay.gguf import nearest
from backbay.plugin import Graph, Node, Plan

from ..draw.draw import Draw
from .extensions import load_extensions
from .profiles import check_profile


@dataclass(frozen=True)
class OpenSettings:
    """What every backend of a run is opened with, unless a scenario asks for something else.

    options   options of the backend, as BackendParams has them
    device    the device on which everything is placed; empty: the backend chooses
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = ""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OpenSettings:
        return cls(dict(data.get("options", {})), str(data.get("device", "")))

    def as_dict(self) -> dict[str, Any]:
        """The opening for JSON, without what is not set."""
        whole = {"options": dict(self.options), "device": self.device}
        return {key: value for key, value in whole.items() if value}

    def params(self, given: BackendParams, blocks: int, devices: Sequence[DeviceInfo]) -> BackendParams:
        """`given`, with the options and the device; `blocks` are the model's, `devices` the backend's."""
        params = replace(given, options={**self.options, **given.options}) if self.options else given
        if not self.device or given.gpu_layers is not None:
            return params
        return replace(params, gpu_layers=self.layers(blocks, devices))

    def layers(self, blocks: int, devices: Sequence[DeviceInfo]) -> GPULayersList:
        """All layers on the device; OptionError if the backend does not have it."""
        known = {device.id: device for device in devices}
        if self.device not in known:
            raise OptionError(
                f"no device {self.device!r}{nearest(self.device, known)}; the backend's are {', '.join(known)}"
            )
        if not known[self.device].is_gpu:
            return GPULayersList()
        return GPULayersList([GPULayers(self.device, range(blocks + 1))])


PLAIN = OpenSettings()  # no options, and the backend places everything


GUARDED = BackendParams(num_threads=2, debug=Debug(poison=True, guard_bytes=64))


class Lab:
    """Backends of one class; `backend` is shared, has poison and guard zones, and is opened anew after a fault."""

    def __init__(
        self,
        open_backend: Callable[[BackendParams, Path | None], Backend],
        name: str,
        spec: str = "",
        opening: OpenSettings = PLAIN,
        against: str = "",
    ) -> None:
        self.name, self.against = name, against
        self.spec, self.opening = spec, opening  # what another process opens the same backend with
        self._open_backend = open_backend
        self._graphs: set[str] = set()  # by their shape keys
        self._new_graphs: list[str] = []
        self.model_calls: dict[str, list[Node]] = {}  # by op: the calls of the model that a run imitates
        self._backend: Backend | None = None
        self._witness: Backend | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None or self._backend.closed:
            self._backend = self._open(GUARDED, None)
        return self._backend

    def _open(self, params: BackendParams, model: Path | None) -> Backend:
        """A backend that notes the graphs that it compiles, but for a dry run."""
        backend = self._open_backend(params, model)
        if params.alloc_memory and "compile" not in vars(backend):  # else it came through another lab
            compile_graph, own = type(backend).compile, weakref.ref(backend)

            def noted(graph: Graph) -> Plan:
                plan = compile_graph(cast("Backend", own()), graph)
                self._note(graph.shape_key())
                return plan

            vars(backend)["compile"] = noted
        return backend

    def _note(self, graph: str) -> None:
        if graph not in self._graphs:
            self._graphs.add(graph)
            self._new_graphs.append(graph)

    def take_new_graphs(self) -> list[str]:
        """The shape keys of the graphs that were compiled first since the last call."""
        new, self._new_graphs = self._new_graphs, []
        return new

    @property
    def witness(self) -> Backend | None:
        """The backend that computes each judged call beside the one under test, if the run has one."""
        if self.against and self._witness is None:
            try:
                self._witness = backbay.open(None, self.against, BackendParams(num_threads=1))
            except BackbayError as error:
                told = (
                    f"the witness, {self.against!r}, cannot be opened; --against none leaves it out: {error}"
                )
                raise BackendUnavailableError(told) from error
            vars(self._witness)["cache_config"] = self.backend.cache_config  # calls are drawn for it
        return self._witness

    def fresh(self, model: Path | None = None, **params: Any) -> Backend:
        """Open another backend, with the weights of a file if given; the caller closes it."""
        return self._open(BackendParams(**{"num_threads": 2, "debug": GUARDED.debug, **params}), model)

    def through(self, change: Callable[[Backend], Backend]) -> Lab:
        """A lab of the same class, each of whose backends is changed when it is opened."""
        return Lab(lambda params, model: change(self._open(params, model)), self.name, opening=self.opening)

    def facts(self) -> dict[str, Any]:
        """The facts about the backend for its certificate."""
        backend = self.backend
        return {
            "backend": origin_of(self.name),
            **({"against": origin_of(self.against)} if self.witness is not None else {}),
            "devices": [f"{device.id} {device.name}" for device in backend.devices()],
            "deterministic": backend.deterministic,
            "contract": str(ContractVersion.parse(backend.contract_version)),
            "python": platform.python_version(),
            "machine": platform.machine(),
            **reach(backend),
            **self.opening.as_dict(),
            **({"avoidances": dict(avoidances)} if (avoidances := backend.avoidances()) else {}),
            **({"scenarios": list(others)} if (others := load_extensions()) else {}),
        }

    def discard(self) -> None:
        """Close the shared backend, in whatever state a fault left it, and the witness."""
        for opened in (self._backend, self._witness):
            if opened is not None:
                opened.close()
        self._backend = self._witness = None


def origin_of(name: str) -> str:
    """The distribution and version of an installed backend; the name of another."""
    try:
        found = entry(name)
    except UnknownBackendError:  # the name of a class
        return name
    return f"{found.distribution} {found.version}" if found.distribution else name


def reach(backend: Backend) -> dict[str, Any]:
    """The number of kernels, and those that a Llama also needs, as `--next` finds them."""
    try:
        others = ", ".join(op.name for op in next_kernels(backend)["a Llama"])
    except Exception:  # noqa: BLE001 `supports` raises, which calls will tell
        return {}
    return {"kernels": len(backend.kernels), "llama": f"also needs {others}" if others else "needs no other"}


def lab_for(backend: str | type[Backend], options: Mapping[str, Any] | None = None, device: str = "") -> Lab:
    """A lab for an installed backend's name, `module:Class`, or a class; everything lies on the device, if given."""
    return lab_with(backend, OpenSettings(options or {}, device))


def lab_with(backend: str | type[Backend], opening: OpenSettings, against: str = "") -> Lab:
    kind = entry(backend).load() if isinstance(backend, str) else backend  # once, not at each opening
    spec = backend if isinstance(backend, str) else ""
    name = spec if spec and ":" not in spec else kind.__name__
    devices: list[DeviceInfo] = []

    def opened(params: BackendParams, model: Path | None) -> Backend:
        if opening.device and not devices:
            with backbay.open(None, kind, BackendParams(options=opening.options)) as first:
                devices.extend(first.devices())
        blocks = blocks_of(model) if model is not None and opening.device else 0
        backend = backbay.open(model, kind, opening.params(params, blocks, devices))
        if not opening.device or not backend.params.gpu_layers:
            return backend
        # In layer 0, unless they name another: leaves of no layer lie on the host.
        return with_contexts(backend, lambda ctx: ctx.layer(0))

    return Lab(opened, name, spec, opening, against)


@contextmanager
def open_contexts(backend: Backend, count: int) -> Iterator[list[Context]]:
    with ExitStack() as opened:
        yield [opened.enter_context(backend.new_context()) for _ in range(count)]


def with_contexts(backend: Backend, changed: Callable[[Context], Context]) -> Backend:
    """The backend, each of whose contexts is changed from now on."""
    make = backend.new_context

    def new_context(*args: Any, **keywords: Any) -> Context:
        return changed(make(*args, **keywords))

    vars(backend)["new_context"] = new_context
    return backend


def blocks_of(model: Path) -> int:
    """The number of a model's blocks; 0 if the file is damaged, which opening it will tell."""
    try:
        with gguf.open(model) as file:
            return file.metadata.int("block_count", 0)
    except BackbayError:
        return 0


Run = Callable[[Lab, Draw], None]


@dataclass(frozen=True)
class Scenario:
    """A check of a profile, with its number of runs for each size; it fails by raising Fault or any other error."""

    name: str
    profile: str
    function: Run
    times: dict[str, int]
    timeout: float | None
    structures: int


SCENARIOS: dict[tuple[str, str], Scenario] = {}  # every scenario, by profile and name

F = TypeVar("F", bound=Run)


def scenario(
    profile: str,
    *,
    tiny: int = 0,
    smoke: int = 1,
    default: int = 4,
    nightly: int = 20,
    structures: int = 1,
    timeout: float | None = None,
) -> Callable[[F], F]:
    """Declare a scenario of a profile; `timeout` in seconds, if longer than a call's.

    structures   the number of its runs if few shapes are wanted

    The quickest scenarios of each profile are also for the size tiny.
    """

    def register(function: F) -> F:
        name = function.__name__
        check_profile(profile, f"scenario {name}")
        if (profile, name) in SCENARIOS:
            raise ValueError(f"two scenarios {name} in profile {profile}")
        times = {"tiny": tiny, "smoke": smoke, "default": default, "nightly": nightly}
        SCENARIOS[profile, name] = Scenario(name, profile, function, times, timeout, structures)
        return function

    return register
