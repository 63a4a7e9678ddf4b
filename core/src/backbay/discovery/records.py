"""Records of backends, kept between processes: verdicts of probes, and speeds that trials found.

A plugin that hangs thus makes one process wait, not each. A verdict depends on the plugin's distribution and files, on all
other distributions, on this machine since it was started, and on environment variables that plugins and their libraries read.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from ..data.cache_folder import FOLDER, LARGEST, OFF, CachedValue, cache_files
from ..regular_files import read_regular
from ..types.contract_version import CONTRACT_VERSION
from ..types.cpu import processor, usable_cores
from .installed import BackendEntry
from .opening import Choice

PROBES = "probes"  # their kind in the cache folder
DAY = 86400.0  # seconds; a verdict is kept so long
PREFIXES = (
    "BACKBAY_", "CUDA_", "DYLD_", "GGML_", "GOMP_", "HIP_", "HSA_", "KMP_", "LD_", "MKL_", "NVIDIA_", "OMP_",
    "OPENBLAS_", "ORT_", "PYTHON", "ROCR_", "VK_",
)  # fmt: skip
"""Environment variables that a verdict depends on, and those that begin with the plugin's name."""
IRRELEVANT = (FOLDER, OFF, "BACKBAY_BACKEND", "BACKBAY_TRIAL_SECONDS")
METADATA = (".dist-info", ".egg-info", ".egg-link")
BOOT = Path("/proc/sys/kernel/random/boot_id")
State = tuple[str, int, int]


SPEEDS = "speeds"  # their kind in the cache folder
UNSETTLED = 86400.0  # seconds that a trial counts which does not last


def verdict_file(entry: BackendEntry) -> CachedValue | None:
    """The place of a verdict; None for a class that no distribution declares, as nothing tells what it depends on."""
    if not entry.distribution:
        return None
    return CachedValue(PROBES, entry.name, _facts(entry))


def _facts(entry: BackendEntry) -> Iterator[Any]:
    yield entry
    yield str(CONTRACT_VERSION)
    try:  # what tells this machine, since it was started, from others: they may share a home, but not drivers
        boot = BOOT.read_text()
    except OSError:
        boot = ""
    yield sys.version, sys.prefix, platform.machine(), platform.release(), platform.node(), boot
    yield list(_distributions())
    for module in ("backbay", entry.module):
        yield list(_package(module.partition(":")[0].partition(".")[0]))
    yield list(_recorded(entry.distribution))
    yield list(_variables(entry.name))


def _distributions() -> Iterator[State]:
    """The metadata folders of all installed distributions, which an installer replaces."""
    for folder in dict.fromkeys(map(os.path.abspath, sys.path)):  # "": a folder that others name
        with suppress(OSError):  # a folder that does not exist, or an archive
            metadata = [path for path in Path(folder).iterdir() if path.name.endswith(METADATA)]
            yield from sorted(map(_file, metadata))


def _package(name: str) -> Iterator[State]:
    """All files of a package or module, also of one that is installed for editing."""
    from importlib.util import find_spec

    try:
        spec = find_spec(name)  # of a name without dots, it imports nothing
    except (ImportError, ValueError, AttributeError):
        return
    if spec is None:
        return
    for folder in spec.submodule_search_locations or ():
        for where, inner, files in os.walk(folder):
            inner[:] = sorted(each for each in inner if each != "__pycache__")
            yield from (_file(Path(where, each)) for each in sorted(files))
    if spec.origin is not None:
        yield _file(Path(spec.origin))


def _recorded(distribution: str) -> Iterator[State]:
    from importlib.metadata import distribution as installed

    with suppress(Exception):  # its metadata are unreadable
        files = installed(distribution).files or ()
        yield from (_file(Path(str(each.locate()))) for each in files if "__pycache__" not in each.parts)


def _variables(name: str) -> Iterator[tuple[str, str, State | None]]:
    """Variables with their values; of a value that names a file, its state too."""
    prefixes = (*PREFIXES, f"{name.upper().replace('-', '_')}_")
    for variable, value in sorted(os.environ.items()):
        if variable.startswith(prefixes) and variable not in IRRELEVANT:
            yield variable, value, _file(path) if (path := Path(value)).is_absolute() else None


def _file(path: Path) -> State:
    try:
        status = path.stat()
    except (OSError, ValueError):
        return str(path), 0, 0
    return str(path), status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class BackendSpeed:
    """The speed of one backend.

    seconds   of the load; None if the backend has none
    rates     per second, by what is counted
    why_not   why there are no seconds
    """

    backend: str
    version: str
    seconds: float | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    why_not: str = ""


@dataclass(frozen=True)
class SpeedTrial:
    """A trial: the backend that it chose for a model and a load, and the speeds of all that took part.

    took    seconds of the trial
    time    when it ended, in seconds since 1970
    lasts   whether it would come out alike on another day: nothing cut it short, and the machine was not busy
    """

    model: str
    load: str
    backend: str
    speeds: tuple[BackendSpeed, ...]
    took: float
    time: float
    lasts: bool

    @property
    def day(self) -> str:
        return time.strftime("%Y-%m-%d", time.localtime(self.time))

    def applied(self, choice: Choice) -> Choice:
        """The choice that this trial makes among equals."""
        entries = {entry.name: entry for entry in (choice.entry, *choice.equals)}
        others = {each.backend: each for each in self.speeds if each.backend != self.backend}
        rest = [each for each in choice.passed_over if each[0] not in entries]
        first = next(each for each in self.speeds if each.backend == self.backend)
        reason = f"it ranks first, and a trial did not finish ({first.why_not})"
        if first.seconds is not None:
            reason = f"it takes {first.seconds:.3g} s for {self.load}, as measured on {self.day}"

        def why_not(other: BackendSpeed) -> str:
            if other.seconds is None:
                return other.why_not
            faster = first.seconds is not None and other.seconds < first.seconds
            return f"it takes {other.seconds:.3g} s{' (too little less to count)' if faster else ''}"

        against = [(name, why_not(others[name])) for name in entries if name in others]
        return Choice(entries[self.backend], reason, (*against, *rest))


@final
class TrialFile:
    """The file of a trial in the cache folder.

    A trial depends on the backends, their versions and what they tell of their libraries, on this machine, and on
    `facts` of the model and the load.
    """

    def __init__(self, choice: Choice, label: str, facts: Iterable[object]) -> None:
        from .probe import probe_all  # subprocess takes longer to import than most of core

        probed = [(each.entry, each.details) for each in probe_all((choice.entry, *choice.equals))]
        backends = [(e.name, e.distribution, e.version, sorted(details.items())) for e, details in probed]
        self._names = {entry.name for entry, _ in probed}
        self._value = CachedValue(SPEEDS, label, [backends, processor(), usable_cores(), *facts])

    def recall(self) -> SpeedTrial | None:
        """The trial, if it was kept; for a day only, if it would not last."""
        found = _parsed(self._value.recall())
        if found is None or not self._names.issuperset(each.backend for each in found.speeds):
            return None
        return found if found.lasts or 0 <= time.time() - found.time < UNSETTLED else None

    def found_once(self, waiting: Callable[[], None]) -> AbstractContextManager[None]:
        """While this lasts, nobody else on this machine holds a trial; see `CachedValue`."""
        return self._value.found_once(waiting)

    def keep(self, trial: SpeedTrial) -> None:
        self._value.keep(asdict(trial))


def kept_trials() -> list[SpeedTrial]:
    """All trials in the cache folder, the latest first."""
    found: list[SpeedTrial | None] = []
    for each in cache_files():
        if each.kind == SPEEDS:
            with suppress(OSError, ValueError, RecursionError):  # damaged, or removed meanwhile
                found.append(_parsed(json.loads(read_regular(each.path, LARGEST))))
    return sorted(filter(None, found), key=lambda trial: -trial.time)


def version_of(entry: BackendEntry) -> str:
    return f"{entry.distribution} {entry.version}"


def _parsed(fields: Any) -> SpeedTrial | None:
    try:
        speeds = tuple(
            BackendSpeed(
                str(each["backend"]),
                str(each["version"]),
                None if each["seconds"] is None else float(each["seconds"]),
                {str(name): float(rate) for name, rate in each["rates"].items()},
                str(each["why_not"]),
            )
            for each in fields["speeds"]
        )
        model, load, backend = (str(fields[key]) for key in ("model", "load", "backend"))
        took, ended = float(fields["took"]), float(fields["time"])
        found = SpeedTrial(model, load, backend, speeds, took, ended, bool(fields["lasts"]))
        _ = found.day  # a time that no calendar has is damaged, too
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, OSError):
        return None
    return found if any(each.backend == found.backend for each in speeds) else None
