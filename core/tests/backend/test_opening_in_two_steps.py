"""Opening: hooks are called when all constructors are done."""

import pytest

from backbay import BackendParams, ClosedError, KernelBackend, OptionError
from backbay.plugin import Entry


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


@pytest.mark.fault("a backend fails to start", "its error; everything it made is freed")
def test_a_start_that_fails_releases_what_it_made():
    released = []

    class Native(KernelBackend):
        contract_version = "1.1"

        def release(self):
            released.append(self)

    with pytest.raises(OptionError, match="has no device 'GPU:7'"):
        Native(None, BackendParams(max_memory={"GPU:7": 1}))
    (backend,) = released
    with pytest.raises(ClosedError):
        backend.new_context()
