"""The choice of a backend: by name, by the environment, or the best that works."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import BackendUnavailableError
from .installed import BackendEntry, backends, entry

VARIABLE = "BACKBAY_BACKEND"
AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """The backend that `open` takes, with the reason; the other backends, each with the reason against it.

    equals    backends that work and rank the same: only speed can tell them apart
    """

    entry: BackendEntry
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()
    equals: tuple[BackendEntry, ...] = ()

    @property
    def name(self) -> str:
        return self.entry.name

    def __str__(self) -> str:
        others = "; ".join(f"not {name}: {reason}" for name, reason in self.passed_over)
        return f"{self.name}: {self.reason}" + (f" ({others})" if others else "")


def choose(backend: str | None = None) -> Choice:
    """The backend that `open` takes for this name, and the reason.

    "auto" takes the best of the backends that work: one that states a `Backend.priority` before one that does not, then
    one with a GPU before one without, then the highest priority, then the first name by alphabet; `equals` of the
    choice are those that only their name put behind. If none works, BackendUnavailableError gives the reason for each.
    """
    if is_auto(backend):
        return _best()
    if backend is not None:
        return Choice(entry(backend), "it was asked for")
    return Choice(entry(os.environ[VARIABLE], asked_by=VARIABLE), f"{VARIABLE} asks for it")


def is_auto(backend: object = None) -> bool:
    """Whether neither this name nor the environment names a backend."""
    wanted = os.environ.get(VARIABLE) or AUTO if backend is None else backend
    return wanted == AUTO


def _best() -> Choice:
    # Only now: subprocess takes longer to import than most of core.
    from .probe import ProbeResult, probe_all, rank, ranked

    installed = backends()
    if not installed:
        raise BackendUnavailableError(
            "no backend is installed; install one, for example "
            "from a clone of backbay: pip install ./plugins/cpu_ref"
        )
    probed = ranked(probe_all(installed.values()))
    if not probed[0].works:  # an earlier process may have met a machine too busy to answer in time
        probe_all([result.entry for result in probed if result.age], again=True)
        probed = ranked(probe_all(installed.values()))
    first, *others = probed
    if not first.works:
        reasons = "; ".join(f"{result.entry.name}: {result.reason}" for result in (first, *others))
        raise BackendUnavailableError(f"no installed backend works: {reasons}")

    def why_not(other: ProbeResult) -> str:
        if not other.works:
            return other.reason
        if other.priority is None and first.priority is not None:
            return "it states no priority"
        if first.has_gpu and not other.has_gpu:
            return "it has no GPU"
        return "its name comes later" if other.priority == first.priority else "its priority is lower"

    gpus = ", ".join(device.id for device in first.devices if device.is_gpu)
    reason = f"it works, on {gpus}" if gpus else "it works"
    equals = tuple(other.entry for other in others if rank(other) == rank(first))
    return Choice(first.entry, reason, tuple((other.entry.name, why_not(other)) for other in others), equals)
