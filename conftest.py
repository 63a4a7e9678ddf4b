"""Tests on any machine: Ctrl-C also in a shell's background job, properties also where a machine is busy, and no
choice of a backend by its speed. And which items of a test are thorough."""

import gc
import os
import signal
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# In CI, properties are tried on the same examples each time.
settings.register_profile(
    "busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("busy")

os.environ.setdefault("BACKBAY_TRIAL_SECONDS", "0")  # a test must not depend on which backend is faster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave of each test that is marked with few(count) that many items, spread over all; the others are thorough."""
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for of_a_test in tests.values():
        [count] = of_a_test[0].get_closest_marker("few").args
        chosen = {(2 * n + 1) * len(of_a_test) // (2 * count) for n in range(count)}
        for n, item in enumerate(of_a_test):
            if n not in chosen:
                item.add_marker("thorough")


def pytest_collection_finish() -> None:
    """Let the garbage collector leave out what stays to the end: half a million objects, seen a hundred times."""
    gc.freeze()
