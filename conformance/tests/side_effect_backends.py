"""Backends that compute well and change the process that they are in."""

from __future__ import annotations

import ctypes
import gc
import locale
import logging
import mmap
import os
import random
import signal
import sys
import tempfile
import threading
import warnings

import numpy as np

from backbay import backends

Reference = backends()["cpu_ref"].load()


def at_start(change):
    """The reference, with a change that each opening makes."""

    class Changing(Reference):
        def start(self):
            super().start()
            change()

    return Changing


def at_run(change):
    """The reference, with a change that each compute makes."""

    class Changing(Reference):
        def run_plan(self, plan, cancel):
            super().run_plan(plan, cancel)
            change()

    return Changing


class AtClose(Reference):
    def release(self):
        super().release()
        os.chdir("/")


class LeavesCollectionOff(Reference):
    """A compute works without the garbage collector, and one that is cancelled leaves it so."""

    def run_plan(self, plan, cancel):
        enabled = gc.isenabled()
        gc.disable()
        super().run_plan(plan, cancel)
        if enabled:
            gc.enable()


class PoolsBySize(Reference):
    """The memory of closed leaves is kept for leaves of the same size."""

    def allocate(self, spec, placement):
        buffer = super().allocate(spec, placement)
        KEPT.append(buffer)
        buffer.close = lambda: None
        return buffer


def interrupts():
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def shares_memory():
    KEPT.append(mmap.mmap(-1, 1 << 20))  # shared, and of no file
    KEPT[-1].write(b"x" * (1 << 20))


def waits_forever():
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def prints_in_c():
    ctypes.CDLL(None).puts(b"hello from C")


KEPT = []

SetsErr = at_start(lambda: np.seterr(all="ignore"))
ErrAtRun = at_run(lambda: np.seterr(all="ignore"))
SeedsNumpy = at_start(lambda: np.random.seed(0))  # noqa: NPY002
Seeds = at_run(lambda: random.seed(0))
Environment = at_start(lambda: os.environ.update(OMP_NUM_THREADS="3"))
StopsCollection = at_start(gc.disable)
Interrupts = at_start(interrupts)
Moves = at_start(lambda: os.chdir("/"))
Locale = at_start(lambda: locale.setlocale(locale.LC_NUMERIC, "C.UTF-8"))
Umask = at_run(lambda: os.umask(0))
Output = at_start(lambda: setattr(sys, "stdout", sys.stderr))
Deep = at_start(lambda: sys.setrecursionlimit(5000))
Silent = at_start(lambda: warnings.simplefilter("ignore"))
Prints = at_run(lambda: print("hello"))
PrintsInC = at_run(prints_in_c)
Path = at_start(lambda: sys.path.append("/nowhere"))
Logs = at_start(lambda: logging.root.addHandler(logging.NullHandler()))

Descriptors = at_start(lambda: KEPT.append(os.open("/dev/null", os.O_RDONLY)))
Threads = at_start(waits_forever)
Leaks = at_start(lambda: KEPT.append(np.ones(1 << 20, np.uint8)))
Litters = at_start(tempfile.mkdtemp)
LeaksShared = at_start(shares_memory)
LeaksAtRun = at_run(lambda: KEPT.append(np.ones(1 << 20, np.uint8)))
LeaksOnce = at_start(lambda: len(KEPT) > 4 or KEPT.append(np.ones(4 << 20, np.uint8)))
