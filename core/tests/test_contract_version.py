"""The contract's version: additions break no plugin."""

import threading
import time

import pytest

import backbay
from backbay import CONTRACT_VERSION, BackendParams, ContractVersion, KernelBackend
from backbay.plugin import Entry, stop_when_cancelled


@pytest.mark.parametrize(
    ("stated", "version"),
    [(1, (1, 0)), ("1.0", (1, 0)), ("1.12", (1, 12)), ((2, 3), (2, 3)), ([0, 1], (0, 1))],
)
def test_a_version_is_stated_in_several_ways(stated, version):
    assert ContractVersion.parse(stated) == version


@pytest.mark.parametrize("stated", [1.1, True, None, "1", "one.two", (1,), (1, 2, 3), "", "1.2.3"])
def test_what_is_no_version_is_refused(stated):
    with pytest.raises(ValueError, match="a contract version is two numbers"):
        ContractVersion.parse(stated)


@pytest.mark.parametrize("minor", range(CONTRACT_VERSION.minor + 1))
def test_plugins_of_every_earlier_minor_version_are_taken(minor):
    kind = type("Plain", (KernelBackend,), {"contract_version": f"{CONTRACT_VERSION.major}.{minor}"})
    backbay.open(backend=kind).close()


def test_hooks_are_called_when_all_constructors_are_done():
    seen = []

    class Late(KernelBackend):
        contract_version = "1.1"

        def __init__(self, model=None, params=BackendParams()):
            super().__init__(model, params)
            self.entry = Entry("CPU:0", "graph")  # behind the constructor of core

        def devices(self):
            seen.append(self.entry)
            return super().devices()

        def book_weights(self):
            seen.append(self.entry)
            self.ledger.take(self.entry, 64, lambda: None)

    with Late() as backend:
        assert backend.memory().cpu.graph.size == 64
        assert len(seen) >= 2


def test_a_plugin_may_use_its_ledger_in_its_constructor():
    class Early(KernelBackend):  # as contract 1.0 allowed
        contract_version = 1

        def __init__(self, model=None, params=BackendParams()):
            super().__init__(model, params)
            self.ledger.take(Entry("CPU:0", "graph"), 32, lambda: None)

    with Early() as backend:
        assert backend.memory().cpu.graph.size == 32


def test_a_library_is_stopped_once_its_run_is_cancelled():
    cancel, stopped = threading.Event(), threading.Event()
    with stop_when_cancelled(cancel, stopped.set, poll=0.001):
        time.sleep(0.02)
        assert not stopped.is_set()
        cancel.set()
        assert stopped.wait(5)
    with stop_when_cancelled(None, stopped.clear):
        assert stopped.is_set()
