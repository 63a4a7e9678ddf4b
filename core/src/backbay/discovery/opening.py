"""Opening a backend: the choice of one, and the way from its class and a model file to an object that computes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..backend.backend import Backend
from ..backend.helper_processes import without_forks
from ..errors import BackendUnavailableError, describe_error
from ..memory.host_memory import naming_limits, raise_if_starved
from ..regular_files import open_regular
from ..types.params import BackendParams
from .installed import BackendEntry, backends, declared, entry, load_declared
from .registration import check_class

if TYPE_CHECKING:
    from ..gguf import ModelFile

VARIABLE = "BACKBAY_BACKEND"
AUTO = "auto"
OPENERS = "backbay.model_files"
MAGIC = b"GGUF"


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


@naming_limits("opening a backend")
@without_forks()
def open(
    path: str | os.PathLike[str] | ModelFile | None = None,
    backend: str | type[Backend] | None = None,
    params: BackendParams | None = None,
) -> Backend:
    """Open a backend, with the model in the file at `path`, see `open_model`, or without a model.

    `path` may be a model file that `backbay.gguf.open` has opened, perhaps with some of its tensors only; the backend
    closes it.

    `backend` is the name of an installed backend, "auto", a subclass of Backend, or the name of one as `module:Class`.
    "auto" tries each installed backend in a child process, and takes the best that works, see `choose`. None takes
    the name in the environment variable BACKBAY_BACKEND; if it is not set, "auto".

    Raises UnknownBackendError, BackendUnavailableError, ModelFileError, OptionError or NoMemoryError.
    """
    params = params if params is not None else BackendParams()
    model = None
    if path is not None:  # first: trying backends takes longer
        from .. import gguf

        model = path if isinstance(path, gguf.ModelFile) else open_model(path)
    try:
        if isinstance(backend, type):
            name = vars(backend).get("name", backend.__name__)  # a name that it only inherits is another's
            return _opened(check_class(backend), str(name), model, params)
        chosen = choose(backend).entry
        try:
            return _opened(chosen.load(), chosen.name, model, params)
        except BackendUnavailableError:
            from .probe import forget_result  # it worked when it was tried, perhaps hours ago

            forget_result(chosen)
            raise
    except BaseException:
        if model is not None:
            model.close()
        raise


def _opened(kind: type[Backend], name: str, model: ModelFile | None, params: BackendParams) -> Backend:
    try:
        opened = kind(model, params)
    except BaseException as error:
        raise_if_starved(error, f"opening backend {name!r}")
        if isinstance(error, (ImportError, OSError)):  # a library is missing, or cannot be loaded
            raise BackendUnavailableError(f"backend {name!r}: {describe_error(error)}") from error
        raise
    opened.name = name
    return opened


def open_model(path: str | os.PathLike[str], only: Callable[[str], bool] | None = None) -> ModelFile:
    """Open a model: a GGUF file, or another file, a folder or a name that an installed package opens. Any defect is a
    ModelFileError.

    `only` chooses tensors by name.
    """
    from .. import gguf  # graphs without a model never need it

    if _is_text(path) and not _is_gguf(path):  # any text may be a name
        for name, points in declared(OPENERS).items():
            opener = load_declared("backbay_model_file", f"the opener {name!r}", points)
            found: gguf.ModelFile | None = opener(path, only)
            if found is not None:
                return found
    return gguf.open(path, only)


def _is_gguf(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as GGUF does, or cannot be read, which is refused where files are opened."""
    if not os.path.isfile(path):  # noqa: PTH113
        return False
    try:
        with open_regular(path) as file:
            return bool(file.read(len(MAGIC)) in (MAGIC, b""))
    except OSError:
        return True


def _is_text(path: object) -> bool:
    """Whether this may be a path or a name; what is neither is refused where files are opened."""
    try:
        return isinstance(path, (str, os.PathLike)) and isinstance(os.fspath(path), str)
    except TypeError:
        return False


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
    from .probe import ProbeResult, probe_all, rank, sort_results

    installed = backends()
    if not installed:
        raise BackendUnavailableError(
            "no backend is installed; install one, for example "
            "from a clone of backbay: pip install ./plugins/cpu_ref"
        )
    probed = sort_results(probe_all(installed.values()))
    if not probed[0].works:  # an earlier process may have met a machine too busy to answer in time
        probe_all([result.entry for result in probed if result.age], again=True)
        probed = sort_results(probe_all(installed.values()))
    first, *others = probed
    if not first.works:
        reasons = "; ".join(f"{result.entry.name}: {result.reason}" for result in probed)
        raise BackendUnavailableError(f"no installed backend works: {reasons}; `backbay doctor` shows more")

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
