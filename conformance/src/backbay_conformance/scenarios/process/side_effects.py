"""Side effects: a backend that is opened, used and closed leaves the host's process as it was."""

from __future__ import annotations

import gc
import io
import locale
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from backbay import Backend, Debug, DType
from backbay.internals import return_freed_memory

from ...checks.process_state import CATEGORIES, STATE, describe_change, flush_c, short
from ...draw.draw import Draw
from ...draw.operand import Operand
from ...fault import Fault
from ...suite.lab import Lab, scenario
from ...suite.profiles import WORKER
from ..threads import CancelCountdown, cancelled
from ..weights.drawn_weights import drawn_weight, product_of_each, write_weights
from .bookings import mib, own_pages

Stage = Callable[[str], None]  # called at the end of each stage of a use, with its name


def used(lab: Lab, path: Path, weights: dict[str, Operand], ended: Stage = lambda stage: None) -> None:
    with lab.fresh(path) as backend:
        backend.load()
        ended("opened")
        product_of_each(backend, weights)
        large_product(backend)
        ended("used")
        cancel(backend)
        ended("cancelled")
    ended("closed")


def large_product(backend: Backend) -> None:
    """A product for which a backend may start threads."""
    with backend.new_context() as ctx:
        ctx.compute(ctx.zeros(DType.F32, 1024, 128).mulmat(ctx, ctx.zeros(DType.F32, 1024, 64)))


def cancel(backend: Backend) -> None:
    """Cancel a compute before it runs, and after some looks."""
    with backend.new_context() as ctx:
        x = ctx.from_floats(np.ones((4, 4)))
        for looks in (0, 1, 3):
            cancelled(partial(ctx.compute, x.mulmat(ctx, x), cancel=CancelCountdown(looks)))


@contextmanager
def small_file(draw: Draw) -> Iterator[tuple[Path, dict[str, Operand]]]:
    kinds = (DType.F32, DType.Q8_0)
    weights = {f"blk.0.{dtype}.weight": drawn_weight(draw, dtype, (256, 4)) for dtype in kinds}
    with tempfile.TemporaryDirectory() as folder:
        yield write_weights(Path(folder) / "weights.gguf", weights, 1), weights


# -- the state of the process -----------------------------------------------------------------------------

ENVIRONMENT = dict(os.environ)  # the environment before any library of a backend was loaded


@contextmanager
def marked(draw: Draw, folder: Path) -> Iterator[None]:
    """Values that no library sets by itself, so that a change shows although an earlier opening made it, too."""
    with ExitStack() as undo:
        undo.enter_context(np.errstate(divide="ignore", over="warn", under="warn", invalid="ignore"))
        undo.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)
        undo.callback(set_environment, dict(os.environ))
        set_environment({**ENVIRONMENT, "BACKBAY_CONFORMANCE_MARK": "1"})
        undo.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 as above
        np.random.seed(1 + draw.below(1 << 16))  # noqa: NPY002
        undo.callback(random.setstate, random.getstate())
        random.seed(f"mark {draw.below(1 << 16)}")
        undo.callback(gc.enable if gc.isenabled() else gc.disable)
        draw.by_turn(gc.enable, gc.disable)()
        undo.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        sys.setrecursionlimit(sys.getrecursionlimit() + 17)
        undo.callback(os.chdir, Path.cwd())
        os.chdir(folder)
        undo.callback(os.umask, os.umask(0o027))
        for name in CATEGORIES:
            category = getattr(locale, name)
            undo.callback(locale.setlocale, category, locale.setlocale(category))
            locale.setlocale(category, "C")
        if threading.current_thread() is threading.main_thread():
            undo.callback(signal.signal, signal.SIGINT, take_over(signal.SIGINT))
        yield


def take_over(number: signal.Signals) -> Any:
    before = signal.getsignal(number)
    return signal.signal(number, lambda *event: before(*event) if callable(before) else None)


def set_environment(wanted: Mapping[str, str]) -> None:
    for name in {*os.environ} - {*wanted}:
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})


@scenario("core", smoke=1, default=6, nightly=60)
def the_process_stays_as_it_was(lab: Lab, draw: Draw) -> None:
    """A second backend that is opened, used and closed changes no state of the process, and prints nothing.

    The first one may have loaded a library, which may set variables of the environment that it reads.
    """
    with small_file(draw) as (path, weights):
        used(lab, path, weights)
        with marked(draw, path.parent), watched_output() as printed:
            before = {name: part.read() for name, part in STATE.items()}

            def unchanged(stage: str) -> None:
                draw.note(f"a backend is {stage}")
                for name, part in STATE.items():
                    if (now := part.read()) != before[name]:
                        told = describe_change(before[name], now)
                        raise Fault("process", f"{name} changed once a backend was {stage}: {told}")
                if text := printed():
                    raise Fault("process", f"standard output has {short(text)} once a backend was {stage}")

            used(lab, path, weights, unchanged)


@contextmanager
def watched_output() -> Iterator[Callable[[], str]]:
    """A function that gives what was printed, by Python or by other code."""
    python, found = io.StringIO(), sys.stdout
    found.flush()
    flush_c()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        sys.stdout = python

        def printed() -> str:
            flush_c()
            file.seek(0)
            return python.getvalue() + file.read().decode(errors="replace")

        try:
            yield printed
        finally:
            flush_c()
            sys.stdout = found
            os.dup2(kept, 1)
            os.close(kept)


# -- what grows ------------------------------------------------------------------------------------------

PROCESS = Path("/proc/self")
FIRST, AGAIN, ROUNDS = 3, 12, 3
"""Openings before the first count, openings between two counts, and how often the second count is tried."""
MOST = 3 << 18
"""Bytes by which the process may grow with each opening: pools and caches grow now and then, and then no more."""
SETTLING = 2.0  # seconds in which threads of a closed backend may end


@scenario("memory", smoke=1, default=2, nightly=8)
def each_opening_gives_back_what_it_took(lab: Lab, draw: Draw) -> None:
    """Backends that are opened, used and closed one after the other leave no files, threads or memory behind."""
    if not (PROCESS / "fd").exists() or not (PROCESS / "task").exists():
        return  # only Linux counts them so
    with small_file(draw) as (path, weights):
        for _ in range(FIRST):
            used(lab, path, weights)
        grown: list[dict[str, int]] = []
        for _ in range(ROUNDS):
            before = held()
            for _ in range(AGAIN):
                used(lab, path, weights)
            grown.append(settled(before))
            draw.note(f"{AGAIN} openings left {told(grown[-1])}")
            if not excessive(grown):
                return
        raise Fault("process", f"each {AGAIN} openings leave {' and '.join(excessive(grown))}")


def held() -> dict[str, int]:
    gc.collect()
    return_freed_memory()
    descriptors, threads = (len([*(PROCESS / part).iterdir()]) for part in ("fd", "task"))
    return {"descriptors": descriptors, "threads": threads, "files": files(), "bytes": own_pages()}


def files() -> int:
    """The files and folders in the temporary folder, if it is this process's own, as that of a worker is."""
    folder = Path(tempfile.gettempdir())
    return sum(1 for _ in folder.iterdir()) if folder.name.startswith(WORKER) else 0


def settled(before: Mapping[str, int]) -> dict[str, int]:
    """The growth, once threads that end have ended."""
    until = time.monotonic() + SETTLING
    while True:
        grown = {name: count - before[name] for name, count in held().items()}
        if grown["threads"] < AGAIN or time.monotonic() > until:
            return grown
        time.sleep(0.05)


def excessive(grown: list[dict[str, int]]) -> list[str]:
    """What grew with each opening, in all rounds."""
    limits = {"descriptors": AGAIN, "threads": AGAIN, "files": AGAIN, "bytes": AGAIN * MOST}
    names = [name for name, limit in limits.items() if all(growth[name] >= limit for growth in grown)]
    return [told({name: grown[-1][name]}) for name in names]


def told(grown: Mapping[str, int]) -> str:
    shown = {name: mib(count) if name == "bytes" else f"{count} {name}" for name, count in grown.items()}
    return ", ".join(shown.values())


SIZES, SIZE, STEP = 64, 1 << 20, 1 << 14
"""Leaves, the bytes of the first, and how much larger each next one is."""


@scenario("memory", smoke=1, default=2, nightly=4)
def closed_leaves_of_many_sizes_leave_no_memory(lab: Lab, draw: Draw) -> None:
    """Contexts with a leaf each, no two of one size, are closed one after the other: a pool must not keep them all."""
    leave_little(lab, draw, open_and_close, SIZES, SIZE, f"closed leaves of {mib(SIZE)} and more")


def leave_little(
    lab: Lab, draw: Draw, life: Callable[[Backend, int], None], lives: int, nbytes: int, what: str
) -> None:
    """Raise Fault if lives of so many bytes leave more than a quarter of them; the first lives have numbers below 0."""
    if not (PROCESS / "status").exists():
        return  # only Linux tells pages by kind
    with lab.fresh(debug=Debug()) as backend:
        for n in range(-4, 0):
            life(backend, n)
        before = held()["bytes"]
        for n in range(lives):
            life(backend, n)
        grown = held()["bytes"] - before
    told = f"{lives} {what} left {mib(grown)}"
    draw.note(told)
    if grown > lives * nbytes // 4:
        raise Fault("memory", told)


def open_and_close(backend: Backend, n: int) -> None:
    """A context with a leaf whose size belongs to its number."""
    with backend.new_context() as ctx:
        ctx.from_floats(np.ones((SIZE + n * STEP) // 4, np.float32))


GRAPHS, RESULT, NODES = 16, 1 << 24, 40
"""Graphs, the bytes of the large result of each, and the small results of the first: compiled code may stay."""


@scenario("memory", smoke=0, default=1, nightly=2, structures=0)
def closed_graphs_leave_no_memory(lab: Lab, draw: Draw) -> None:
    """Contexts with a graph each, no two of one structure, are closed one after the other: no program keeps its results."""
    leave_little(
        lab, draw, compute_and_close, GRAPHS, RESULT, f"closed graphs with a result of {mib(RESULT)} each"
    )


def compute_and_close(backend: Backend, n: int) -> None:
    """A context that adds the end of a chain of small sums, whose length belongs to its number, to a large leaf."""
    with backend.new_context() as ctx:
        y = x = ctx.from_floats([1.0])
        for _ in range(NODES + n):
            y = y.add(ctx, x)
        ctx.compute(ctx.from_floats(np.ones(RESULT // 4, np.float32)).add(ctx, y))
