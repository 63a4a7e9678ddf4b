"""What a backend is: the part that core does for every one, and the part that a plugin implements."""

from __future__ import annotations

import re
import threading
import weakref
from abc import ABCMeta, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NoReturn, Self, final

from ..building.composite_parts import composed
from ..building.graph_builder import build_graph
from ..data.buffer import Buffer
from ..data.leaf import Leaf
from ..errors import (
    BackbayError,
    ClosedError,
    DTypeError,
    ModelFileError,
    NoMemoryError,
    NotComputedError,
    OptionError,
)
from ..gguf import Config, ModelFile, TensorInfo
from ..graph.cancel import Cancel, check_cancel
from ..graph.graph import Graph
from ..graph.plan import Plan
from ..memory.ledger import Entry, Ledger
from ..memory.report import BackendMemory, human_bytes
from ..ops.declaration import Op
from ..trace.context import Context
from ..trace.recording import Recording
from ..trace.tensor import Tensor
from ..trace.tracing import Counters, leaf_tensor
from ..types.dtypes import CONTRACT
from ..types.params import (
    KERNEL,
    BackendParams,
    CacheConfig,
    DeviceInfo,
    Option,
    Precision,
    Support,
    parse_options,
)
from ..types.placement import MAX_LAYERS, Placement
from ..types.spec import Spec

DEFAULT_MAX_NODES = 8192
Progress = Callable[[float], None]
"""Called with 0.0 to 1.0, never less than before."""


class _OpenedInTwoSteps(ABCMeta):
    """Calling a class makes an object, and starts it once all constructors are done."""

    def __call__(cls, *args: Any, **keywords: Any) -> Any:
        backend = super().__call__(*args, **keywords)
        backend.start()
        return backend


class Backend(metaclass=_OpenedInTwoSteps):
    """One model on one machine. A plugin subclasses this, or `KernelBackend`, and implements what is abstract.

    Computes are serialized: one at a time, whatever threads ask for them.
    """

    contract_version: ClassVar[str | int | tuple[int, int]]
    """The version of the contract that the plugin was written for, such as "1.1"."""
    kernels: ClassVar[Mapping[Op[Any, Any], Callable[..., Any]]] = {}
    """What the plugin runs by itself; for other ops core's composites serve, if there are any."""
    deterministic: ClassVar[bool] = True
    """Whether a plan that runs again with the same data gives the same bits. Another context, layout or number of
    threads need not."""
    options: ClassVar[Mapping[str, Option]] = {}
    """What `BackendParams.options` may hold."""
    priority: ClassVar[int | None] = None
    """Which of several backends "auto" takes, where GPUs do not decide it: the highest.

    One that leaves it at None is the last that "auto" takes, whatever its devices: to be installed is not to be chosen.
    Those of backbay are 0 for ggml and onnx, and -100 for cpu_ref.
    """
    name = "unnamed"
    """The entry point's name."""

    # -- what a plugin implements ------------------------------------------------------------------------

    @abstractmethod
    def devices(self) -> list[DeviceInfo]:
        """What this backend can use, the CPU first."""

    @abstractmethod
    def compile(self, graph: Graph) -> Plan:
        """Turn a checked graph into what runs it; allocate only if `params.alloc_memory`."""

    @abstractmethod
    def allocate(self, spec: Spec, placement: Placement) -> Buffer:
        """Memory for a leaf; MemoryError if there is none."""

    @abstractmethod
    def weight(self, info: TensorInfo) -> Buffer:
        """Where a weight's data are once loaded."""

    @abstractmethod
    def precision(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Precision:
        """What an op rounds its activations to and sums in; error bounds are derived from it."""

    def cache_config(self) -> CacheConfig:
        """What this backend wants of a cache."""
        return CacheConfig()

    def supports(self, op: Op[Any, Any], specs: Sequence[Spec | None]) -> Support:
        """How an op on such operands would run: by a kernel, by core's composite, or not at all.

        Core runs a composite only if this says yes to each of its parts. What they are is found with attributes at
        their defaults: where others ask for more, such as a softcap that takes a tanh, compiling refuses what is
        missing. Where operands and defaults do not tell it, the composite counts as complete.
        """
        if op in self.kernels or op.view:
            return KERNEL
        return composed(op, specs, self.supports)

    def read_weights(self, progress: Progress, cancel: Cancel | None) -> None:
        """Bring the weights to where `weight` says they are, telling how far it is (0.0 to 1.0)."""

    def book_weights(self) -> None:
        """Take the memory of all weights; by default they stay where the file is mapped, and are only booked."""
        for info in self.model.tensors.values() if self.model is not None else ():
            self.ledger.take(self.weight_entry(info.name), info.nbytes, lambda: None)

    def export(self, graph: Graph, names: Mapping[int, str], folder: Path) -> Path:
        """Write a graph and its weights as a model that the engine behind this backend runs by itself.

        `names` are those of leaves and results, by the index of their node. The path of the file to open.
        """
        raise BackbayError(f"backend {self.name!r} writes no models out; onnx does")

    @classmethod
    def diagnose(cls) -> dict[str, str]:
        """What `backbay doctor` should say of this machine, line by line: library, version, CPU features.

        A probe calls it in a process of its own, before it makes a backend. A crash there says that nothing works.
        """
        return {}

    def release(self) -> None:
        """Free what the plugin holds beside buffers and plans; called once, when all of them are closed."""

    def device_of(self, placement: Placement) -> str:
        """The id of the device that a placement means."""
        return self.devices()[0].id

    # -- what core does ----------------------------------------------------------------------------------

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        self.model, self.params = model, params
        self.option_values = parse_options(self.options, params.options)
        self.lock = threading.RLock()  # held while computing, loading and freeing
        self.closed = False
        self.loaded = model is None
        self._weights: dict[str, Tensor] = {}
        self._recordings: weakref.WeakSet[Recording] = weakref.WeakSet()
        self.dropped: deque[Recording] = deque()  # never closed, and collected while another thread computed
        self._past = Counters()

    def start(self) -> None:
        """Finish opening, once all constructors are done: check the params, and book the weights.

        A plugin that needs the ledger to open extends this method, and calls `super().start()` first.
        """
        self._check_devices([id for id, _ in self.ledger.devices])
        self.book_weights()

    @cached_property
    def ledger(self) -> Ledger:
        """The books of all memory; `devices` must work when they are first opened."""
        devices = self.devices()
        layers = _block_count(self.model) + 1 if self.model is not None else 0
        named = [(device.id, device.name) for device in devices]
        totals = {device.id: device.total_memory for device in devices if device.total_memory}
        return Ledger(named, layers, self.params.max_memory, holds=self.params.alloc_memory, totals=totals)

    @property
    def config(self) -> Config:
        """Typed access to the model's metadata; empty without a model."""
        return self.model.metadata if self.model is not None else Config()

    @property
    def counters(self) -> Counters:
        """What all contexts together, closed ones too, have traced, compiled, run and allocated."""
        total = Counters()
        for counters in (self._past, *[recording.counters for recording in self._recordings]):
            total.add(counters)
        return total

    def memory(self) -> BackendMemory:
        """What is allocated, or, if the backend only measures, what would be."""
        self.check_open()
        return self.ledger.report()

    @final
    def get(self, name: str) -> Tensor | None:
        """The weight of that name; None if the file has none. It can be traced with before `load`."""
        self.check_open()
        if name in self._weights or self.model is None or name not in self.model.tensors:
            return self._weights.get(name)
        info = self.model.tensors[name]
        if info.dtype not in CONTRACT:
            raise DTypeError(f"{name} is {info.dtype}, which no op takes")
        buffer = self.weight(info) if self.params.alloc_memory else None
        leaf = Leaf(self, None, Spec(info.dtype, info.shape), buffer, self.placement_of(name), name=name)
        return self._weights.setdefault(name, leaf_tensor(leaf, None))

    @final
    def load(self, progress: Progress | None = None, cancel: Cancel | None = None) -> None:
        """Load the weights. `progress` is called with 0.0 to 1.0, never less than before."""
        with self.lock:
            self.check_open()
            if not self.params.alloc_memory:
                raise BackbayError(self.why_no_data())
            report = progress or _ignore
            report(0.0)
            check_cancel(cancel)  # also for a backend that has nothing to read
            if not self.loaded:
                self.read_weights(report, cancel)
                self.loaded = True
            report(1.0)

    @final
    def new_context(self, max_nodes: int = DEFAULT_MAX_NODES) -> Context:
        """A context for a graph of at most `max_nodes` nodes."""
        self.check_open()
        recording = Recording(self, max_nodes, self._build)
        self._recordings.add(recording)
        return Context(recording, Placement())

    @final
    def close(self) -> None:
        """Free everything, contexts included, after a running compute. Closing again does nothing."""
        with self.lock:
            if self.closed:
                return
            self.release_dropped()
            for recording in list(self._recordings):
                recording.release()
            self.closed = True
            for weight in self._weights.values():
                if weight.leaf is not None and weight.leaf.buffer is not None:
                    weight.leaf.buffer.close()
            self._weights.clear()
            self.release()
            if self.model is not None:
                self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what contexts ask of it -------------------------------------------------------------------------

    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"backend {self.name} is closed")

    def check_allocates(self) -> None:
        """Raise if this backend only measures."""
        if not self.params.alloc_memory:
            raise BackbayError(self.why_no_data())

    def why_no_data(self) -> str:
        if not self.params.alloc_memory:
            return f"backend {self.name} only measures (alloc_memory=False)"
        return "call backend.load() first"

    def run(self, graph: Graph, plan: Plan, cancel: Cancel | None) -> None:
        """Run a plan, after a last check of what its leaves hold; the caller holds the lock."""
        if graph.of_weights and not self.loaded:
            raise NotComputedError(f"the weights hold no data: {self.why_no_data()}")
        graph.check_homes()
        for leaf in graph.id_leaves:
            if not leaf.written and leaf.spec.size:
                raise NotComputedError(f"{leaf.spec} serves as ids, but was never written; call from_ints")
        try:
            plan.run(cancel)
        except MemoryError as error:
            self.refuse_memory(error)

    def _build(self, recording: Recording, roots: tuple[Tensor, ...]) -> Graph:
        return build_graph(recording, roots, self.supports)

    def refuse_memory(self, error: MemoryError) -> NoReturn:
        """Raise the NoMemoryError of an allocation that was not booked, such as NumPy's."""
        if isinstance(error, NoMemoryError):
            raise error
        host = self.devices()[0]
        free = "" if host.free_memory is None else f"; {human_bytes(host.free_memory)} are free"
        raise self.ledger.failure(Entry(host.id, "graph"), 0, f"{error}{free}") from error

    def take_leaf(self, spec: Spec, placement: Placement) -> Buffer | None:
        """Book and allocate a leaf."""
        holds = self.params.alloc_memory
        return self.ledger.take(
            self._entry(placement), spec.nbytes, lambda: self.allocate(spec, placement) if holds else None
        )

    def drop_leaf(self, leaf: Leaf) -> None:
        self.ledger.give_back(self._entry(leaf.placement), leaf.spec.nbytes)
        if leaf.buffer is not None:
            leaf.buffer.close()
            leaf.buffer = None

    def release_dropped(self) -> None:
        """Free what no garbage collection could; the caller holds the lock."""
        while self.dropped:
            self.dropped.popleft().release()

    def forget(self, recording: Recording) -> None:
        self._past.add(recording.counters)
        self._recordings.discard(recording)

    # -- where things belong -----------------------------------------------------------------------------

    def placement_of(self, weight: str) -> Placement:
        """Where a weight belongs: blk.N with layer N, inputs on the host, and the rest with the output layer."""
        block = re.match(r"blk\.(\d+)\.", weight)
        if block and int(block[1]) < self.ledger.layers:
            return Placement(layer=int(block[1]))
        if weight.startswith(("output", "v.", "mm.")):
            return Placement(layer=self.ledger.layers - 1)
        return Placement(host=True)

    def weight_entry(self, weight: str) -> Entry:
        """The line of the memory report that a weight belongs to."""
        placement = self.placement_of(weight)
        if placement.layer is None:
            return Entry(self.devices()[0].id, "input_weights")
        return Entry(self.device_of(placement), "weights", placement.layer)

    def _entry(self, placement: Placement) -> Entry:
        device = self.device_of(placement)
        return Entry(device, "graph") if placement.layer is None else Entry(device, "cache", placement.layer)

    def _check_devices(self, known: list[str]) -> None:
        named = [*self.params.max_memory, *[gpu.id for gpu in self.params.gpu_layers or ()]]
        for id in named:
            if id not in known:
                raise OptionError(f"backend {self.name} has no device {id!r}; it has {', '.join(known)}")


def _block_count(model: ModelFile) -> int:
    """How many layers a model says it has, if that can be."""
    count = model.metadata.int("block_count", 0)
    if 0 <= count < MAX_LAYERS:
        return count
    expected = f"a block_count in [0, {MAX_LAYERS})"
    raise ModelFileError(model.path, model.metadata.offset("block_count"), expected, count)


def _ignore(done: float) -> None:
    """The progress of a load that nobody watches."""
