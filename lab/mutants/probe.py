"""Defines __ran__ for the modules of one process: it marks the place in the rows of the tests that run now.

The table is a file that all processes of a run share. It begins with 64 slots of 4 bytes, one for each pytest-xdist
worker, which say the row of the worker's current test; then come rows of one byte for each place. A child process knows
its worker from the environment; one that does not marks the current tests of all workers. HITS and PLACES stand before
this text in the copy that is run. It imports little, as tests look at what a program imports.
"""

import builtins
import mmap
import os

SLOTS = 64


def _open():
    file = os.open(HITS, os.O_RDWR)  # noqa: F821
    table = memoryview(mmap.mmap(file, 0))
    os.close(file)
    return table[: 4 * SLOTS].cast("i"), table[4 * SLOTS :]


def _probe(places):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    slots = [int(worker[2:]) + 1] if worker else range(SLOTS)
    try:
        current, hits = _open()
    except OSError:  # a process that may open no files
        return lambda place: None

    def ran(place):
        for slot in slots:
            row = current[slot]
            if row >= 0:
                hits[row * places + place] = 1

    return ran


if not hasattr(builtins, "__ran__"):
    builtins.__ran__ = _probe(PLACES)  # noqa: F821
