"""The backend: the work that core does for every plugin."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, NoReturn, Self, final

from ..composites.graph_builder import build_graph, call_text
from ..data.buffers import Buffer
from ..data.leaf import Leaf
from ..errors import (
    BackbayError,
    CancelledError,
    ClosedError,
    DTypeError,
    NoMemoryError,
    NotComputedError,
    OptionError,
    RefusalError,
)
from ..graph.graph import Cancel, Graph, Plan, check_cancel, require_cancel
from ..memory.host_memory import naming_limits, return_freed_memory
from ..memory.ledger import Entry, Ledger
from ..memory.report import BackendMemory, human_bytes
from ..trace.context import Context
from ..trace.recording import DEFAULT_MAX_NODES, Recording
from ..trace.tensor import Tensor
from ..trace.traced_graph import Counters, leaf_tensor
from ..types.dtype import CONTRACT
from ..types.gpu_layers import Placement
from ..types.params import COMMON_OPTIONS, COPIED, BackendParams, parse_options
from ..types.spec import Spec
from .block_numbers import BlockNumbers
from .helper_processes import close_after_fork, never_free, without_forks
from .hooks import BackendHooks, Progress
from .profiling import ProfiledRun, Profiler, profile_runs

if TYPE_CHECKING:
    from ..gguf import Config, ModelFile


class Backend(BackendHooks):
    """One model (or none) on one machine. A plugin subclasses Backend or KernelBackend, and implements the hooks.

    Computes of all threads take turns.
    """

    def __init__(self, model: ModelFile | None = None, params: BackendParams = BackendParams()) -> None:
        self.model, self.params = model, params
        self.option_values = parse_options({**COMMON_OPTIONS, **self.options}, params.options)
        self.lock = threading.RLock()  # held while computing, loading and freeing
        self.busy = 0  # contexts of the thread that holds the lock, in the midst of a compile or a compute
        self.closed = False
        self.closed_because = ""  # what the message of a ClosedError adds
        self.loaded = model is None
        self.refusals: dict[str, str] = {}  # the reason for each call in whose place its composite runs
        self._weights: dict[str, Tensor] = {}
        self._recordings: weakref.WeakSet[Recording] = weakref.WeakSet()
        self.dropped: deque[Recording] = deque()  # collected as garbage during a compute
        self._past = Counters()
        self._blocks: BlockNumbers | None = None
        self._ledger: Ledger | None = None
        self.profiler: Profiler | None = None  # while runs are profiled
        close_after_fork(self)

    def start(self) -> None:
        known = [id for id, _ in self.ledger.devices]
        for id in [*self.params.max_memory, *[gpu.id for gpu in self.params.gpu_layers or ()]]:
            if id not in known:
                raise OptionError(f"backend {self.name} has no device {id!r}; it has {', '.join(known)}")
        if self.copies_weights and self.params.alloc_memory:
            self._make_room_for_copies()
        elif self.model is not None and self.model.derived_nbytes:
            # Weights that the file holds in another form are booked as mapped, though no file backs them.
            self.ledger.foresee(Entry(self.ledger.devices[0][0], "input_weights"), self.model.derived_nbytes)
        self.book_weights()

    @final
    def abandon(self) -> None:
        """Give up opening: free what `start` has made before it failed."""
        self.closed = True
        # The plugin may miss what `start` did not make; the error that counts is the error of `start`.
        with suppress(Exception):
            self.release()

    @property
    @final
    def blocks(self) -> BlockNumbers:
        """The blocks of the model, each a layer of the memory report; none without a model."""
        if self._blocks is None:
            self._blocks = BlockNumbers(self.model)
        return self._blocks

    @property
    @final
    def ledger(self) -> Ledger:
        """The books of all memory, opened at first use: only then must `devices` work."""
        if self._ledger is None:
            devices = self.devices()
            named = [(device.id, device.name) for device in devices]
            totals = {device.id: device.total_memory for device in devices if device.total_memory}
            layers = self.blocks.count + 1 if self.model is not None else 0
            self._ledger = Ledger(
                named,
                layers,
                self.params.max_memory,
                holds=self.params.alloc_memory,
                copied=self.copies_weights,
                totals=totals,
                hardware_ids={device.id: device.hardware_id for device in devices},
            )
        return self._ledger

    @property
    @final
    def config(self) -> Config:
        """Typed access to the model's metadata; empty without a model."""
        if self.model is not None:
            return self.model.metadata
        from ..gguf import Config  # who runs graphs alone never needs it

        return Config()

    @property
    @final
    def counters(self) -> Counters:
        """The counters of all contexts together, closed ones included."""
        total = Counters()
        for counters in (self._past, *[recording.counters for recording in self._recordings]):
            total.add(counters)
        return total

    @final
    def memory(self) -> BackendMemory:
        """The report of allocated memory; if the backend only measures, of the memory that it would allocate."""
        self.check_open()
        return self.ledger.report()

    @final
    def get(self, name: str) -> Tensor | None:
        """The weight with this name; None if the file has none. It can be used for tracing before `load`."""
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
        require_cancel(cancel)
        if progress is not None and not callable(progress):
            raise OptionError(f"progress must be a function of one number, got {progress!r}")
        with self.lock:
            self.check_open()
            self.check_allocates()
            report = progress or (lambda done: None)
            report(0.0)
            try:
                check_cancel(cancel)  # here, as a backend with nothing to read does not check
                if not self.loaded:
                    self.ledger.check_free()
                    self._read(report, cancel)
                    self.loaded = True
            except CancelledError as error:
                raise CancelledError("the load was cancelled; the weights are not loaded") from error
            report(1.0)

    @naming_limits("loading the weights")
    def _read(self, report: Progress, cancel: Cancel | None) -> None:
        assert self.model is not None  # else there is nothing to load
        rest = report
        if self.copies_weights:
            for done in self.model.read_copies():
                check_cancel(cancel)
                report(done / 2)
            rest = lambda done: report((1 + done) / 2)  # noqa: E731
        self.read_weights(rest, cancel)
        self.model.check_unchanged()  # what was read last may have been overwritten first

    @property
    @final
    def copies_weights(self) -> bool:
        """Whether this backend keeps all weights in memory, as they are in the model file: option weights=copied."""
        return self.model is not None and self.option_values["weights"] == COPIED

    def _make_room_for_copies(self) -> None:
        assert self.model is not None
        host = self.ledger.devices[0][0]
        nbytes = sum(info.nbytes for info in self.model.tensors.values())
        total = self.ledger.totals.get(host)
        if total is not None and nbytes > total:
            why = f"the device has {human_bytes(total)} in all"
            raise self.ledger.failure(Entry(host, "input_weights"), nbytes, why)
        try:
            self.model.copy_weights()
        except MemoryError as error:
            self.refuse_memory(error)

    @final
    def new_context(self, max_nodes: int = DEFAULT_MAX_NODES) -> Context:
        """A context for at most `max_nodes` traced nodes."""
        self.check_open()
        recording = Recording(self, max_nodes)
        self._recordings.add(recording)
        return Context(recording, Placement())

    @final
    def profiling(self, *, nodes: bool = True) -> AbstractContextManager[list[ProfiledRun]]:
        """While this lasts, runs of all contexts are profiled; the list is filled at its end.

        Contexts compile anew for it, and again afterwards. Without `nodes`, runs are as ever, and only they are timed.
        """
        return profile_runs(self, self._recordings, nodes=nodes)

    @property
    @final
    def profiles_nodes(self) -> bool:
        """Whether a plan that is compiled now is to tell the times of its nodes; see `Plan.profile`."""
        return self.profiler is not None and self.profiler.nodes

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
            return_freed_memory()

    @final
    def after_fork(self, reason: str) -> None:
        """Close without freeing: this process is a forked child, and the library's threads are not in it."""
        if self.closed:
            return
        self.closed, self.closed_because = True, reason
        self.lock = threading.RLock()  # a thread of the parent may have held the old one
        never_free(self)
        for recording in list(self._recordings):
            never_free(recording)
            recording.after_fork()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @final
    def check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"backend {self.name} is closed{self.closed_because}")

    @final
    def check_allocates(self) -> None:
        if not self.params.alloc_memory:
            raise BackbayError(self.why_no_data())

    @final
    def why_no_data(self) -> str:
        if not self.params.alloc_memory:
            return f"backend {self.name} only measures (alloc_memory=False)"
        return "call backend.load() first"

    @final
    @without_forks()
    def compiled(self, graph: Graph) -> Plan:
        """The plan of a graph. Compiling may import, and may take locks of a library."""
        return self.compile(graph)

    @final
    def composes(self, refusal: RefusalError) -> bool:
        """Whether the next graph has a composite in the place of a refused op."""
        node = refusal.node
        if not self.composes_refusals or node is None or node.op is None or node.op.composite is None:
            return False
        call = call_text(node.op, node.args)
        known = call in self.refusals
        self.refusals[call] = refusal.reason
        return not known

    @final
    def run(self, graph: Graph, plan: Plan, cancel: Cancel | None) -> None:
        """Run a plan, after a check that its leaves and weights hold data; the caller holds the lock."""
        if graph.of_weights:
            if not self.loaded:
                raise NotComputedError(f"the weights hold no data: {self.why_no_data()}")
            self.check_file()
        graph.check_homes()
        for leaf in graph.id_leaves:
            if not leaf.written and leaf.spec.size:
                raise NotComputedError(f"{leaf.spec} serves as ids, but was never written; call from_ints")
        try:
            if self.profiler is None:
                plan.run(cancel)
            else:
                self.profiler.run(graph, plan, cancel)
        except MemoryError as error:
            self.refuse_memory(error)
        if graph.of_weights:
            self.check_file()  # results of weights that changed meanwhile are wrong

    def _build(self, recording: Recording, roots: tuple[Tensor, ...]) -> Graph:
        graph = build_graph(recording, roots, self.supports, self.refusals)
        if graph.of_weights:
            self.check_file()  # compiling may read weights
        return graph

    @final
    def check_file(self) -> None:
        """Raise ModelFileError if weights lie in a model file that was changed since it was opened."""
        if self.model is not None:
            self.model.check_unchanged()

    @final
    def refuse_memory(self, error: MemoryError) -> NoReturn:
        """Raise NoMemoryError for an allocation that is not in the ledger, such as one of NumPy's."""
        if isinstance(error, NoMemoryError):
            raise error
        host = self.devices()[0]
        free = "" if host.free_memory is None else f"; {human_bytes(host.free_memory)} are free"
        raise self.ledger.failure(Entry(host.id, "graph"), 0, f"{error}{free}") from error

    @final
    def take_leaf(self, spec: Spec, placement: Placement) -> Buffer | None:
        holds = self.params.alloc_memory
        return self.ledger.take(
            self._entry(placement), spec.nbytes, lambda: self.allocate(spec, placement) if holds else None
        )

    @final
    def drop_leaf(self, leaf: Leaf) -> None:
        self.ledger.give_back(self._entry(leaf.placement), leaf.spec.nbytes)
        if leaf.buffer is not None:
            leaf.buffer.close()
            leaf.buffer = None

    @final
    def release_dropped(self) -> None:
        """Free recordings that the garbage collector could not free; the caller holds the lock."""
        while self.dropped:
            self.dropped.popleft().release()

    @final
    def forget(self, recording: Recording) -> None:
        self._past.add(recording.counters)
        self._recordings.discard(recording)

    @final
    def placement_of(self, weight: str) -> Placement:
        """The placement of a weight: blk.N in layer N; output, v. and mm. in the output layer; others on the host.

        In an encoder alone, v.blk.N is in layer N, and what comes before the blocks is in the first layer.
        """
        block = self.blocks.of(weight)
        if block is not None:
            return Placement(layer=block)
        if self.blocks.precedes(weight):
            return Placement(layer=0)
        if weight.startswith(("output", "v.", "mm.")):
            return Placement(layer=self.ledger.layers - 1)
        return Placement(host=True)

    def _entry(self, placement: Placement) -> Entry:
        device = self.device_of(placement)
        return Entry(device, "graph") if placement.layer is None else Entry(device, "cache", placement.layer)
