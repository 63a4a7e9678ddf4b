"""Profiles: runs of plans with their times, and those of the nodes of their graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, final

from ..errors import BackbayError
from ..graph.graph import Cancel, Graph, Plan, Timing, Timings
from ..trace.recording import Recording

if TYPE_CHECKING:
    from .backend import Backend


@dataclass(frozen=True)
class ProfiledRun:
    """A run of a graph: when it began by `time.perf_counter`, and the seconds that it took.

    `timings` are those of its nodes; without any, the backend tells the times of whole runs only.
    """

    graph: Graph
    begun: float
    seconds: float
    timings: tuple[Timing, ...] = ()


@final
class Profiler:
    """Notes the times of runs; those of nodes only if `nodes` is true."""

    def __init__(self, *, nodes: bool) -> None:
        self.nodes = nodes
        self._noted: list[tuple[ProfiledRun, Timings]] = []

    def run(self, graph: Graph, plan: Plan, cancel: Cancel | None) -> None:
        timings: Timings = tuple
        begun = perf_counter()
        if self.nodes:
            timings = plan.profile(cancel)
        else:
            plan.run(cancel)
        self._noted.append((ProfiledRun(graph, begun, perf_counter() - begun), timings))

    def runs(self) -> list[ProfiledRun]:
        """All runs, with the times of their nodes; to be called once."""
        return [replace(run, timings=tuple(timings())) for run, timings in self._noted]


@contextmanager
def profile_runs(
    backend: Backend, recordings: Iterable[Recording], *, nodes: bool
) -> Iterator[list[ProfiledRun]]:
    """Profile the runs of a backend; the list is filled at the end."""
    profiler, found = Profiler(nodes=nodes), list[ProfiledRun]()
    backend.check_open()
    with backend.lock:
        if backend.profiler is not None:
            raise BackbayError(f"backend {backend.name} is being profiled already")
        _change(backend, recordings, profiler)
    try:
        yield found
    finally:
        with backend.lock:
            _change(backend, recordings, None)
    found += profiler.runs()


def _change(backend: Backend, recordings: Iterable[Recording], profiler: Profiler | None) -> None:
    """Set or end the profiler of a backend; contexts compile anew if plans are to be different."""
    before, backend.profiler = backend.profiles_nodes, profiler
    if backend.profiles_nodes != before:
        for recording in list(recordings):
            recording.recompile()
