"""The ledger counts memory that no file backs against the free memory of the host, before it is filled."""

import numpy as np
import pytest

from backbay import AllocationStatus, NoMemoryError
from backbay.memory import ledger as module
from backbay.memory.host_memory import HostMemory
from backbay.memory.ledger import SPARE, Entry, Ledger

CPU, GPU = "CPU:0", "GPU:0"
MIB = 1 << 20
WEIGHTS, CACHE = Entry(CPU, "weights", 1), Entry(CPU, "cache", 0)


@pytest.fixture
def free(monkeypatch):
    """A host with 100 MiB free beside what is kept to spare; call it to change that."""

    def have(mib):
        monkeypatch.setattr(module, "host_memory", lambda: HostMemory(None, mib * MIB + SPARE))

    have(100)
    return have


def book(ledger, entry, mib, **keywords):
    return ledger.take(entry, mib * MIB, lambda: None, **keywords)


def opened(**keywords):
    return Ledger([(CPU, "CPU"), (GPU, "GPU")], 2, {}, holds=True, **keywords)


@pytest.mark.fault(
    "weights of memory of their own exceed the free memory", "NoMemoryError, and the failing entry is marked"
)
def test_memory_that_is_not_filled_yet_counts_against_the_free_memory(free):
    ledger = opened()
    book(ledger, WEIGHTS, 60, mapped=False)
    with pytest.raises(NoMemoryError, match=r"41.0 MiB of cache of layer 0 on CPU:0.*are free") as caught:
        book(ledger, CACHE, 41)
    assert caught.value.memory.cpu.cache[0].status is AllocationStatus.Failed
    book(ledger, CACHE, 39)
    free(90)
    with pytest.raises(NoMemoryError, match="weights of layer 1") as caught:
        ledger.check_free()
    assert caught.value.memory.cpu.weights[1].status is AllocationStatus.Failed


def test_mapped_weights_and_other_devices_do_not_count(free):
    ledger = opened()
    book(ledger, WEIGHTS, 1000)
    book(ledger, Entry(GPU, "weights"), 1000, mapped=False)
    book(ledger, CACHE, 100)
    ledger.check_free()


def test_weights_count_if_the_backend_copies_them(free):
    with pytest.raises(NoMemoryError):
        book(opened(copied=True), WEIGHTS, 101)


def test_memory_that_is_filled_counts_once(free):
    ledger = opened()
    filled = ledger.take(CACHE, 64 * MIB, lambda: np.ones(64 * MIB, np.uint8))
    free(37)
    book(ledger, CACHE, 36)
    assert filled.size == 64 * MIB


def test_what_is_given_back_no_longer_counts(free):
    ledger = opened()
    book(ledger, WEIGHTS, 90, mapped=False)
    ledger.give_back(WEIGHTS, 90 * MIB, mapped=False)
    book(ledger, CACHE, 99)
    assert ledger.report().total() == 99 * MIB


def test_the_host_has_a_line_of_its_own(free):
    ledger = opened()
    book(ledger, Entry(CPU, "host"), 3)
    report = ledger.report()
    assert report.host.size == report.total() == report.allocated() == 3 * MIB
    assert ("CPU:0", "host", "", report.host) in report.rows()
