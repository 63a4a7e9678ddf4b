"""The suite under pytest: `pytest --pyargs backbay_conformance --backbay-backend NAME`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .runner.workers.supervisor import WorkerSupervisor

PREFIX = "conformance_"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("backbay", "conformance of backbay backends")
    group.addoption("--backbay-backend", default=None, help="the backend to test: its name, or module:Class")
    group.addoption("--backbay-profile", default=None, help="profiles of the suite, separated by commas")
    group.addoption("--backbay-size", default="default", help="tiny, smoke, default or nightly")
    group.addoption("--backbay-seed", type=int, help="seed of all random choices (--hypothesis-seed, or 0)")
    group.addoption("--backbay-timeout", type=float, default=60.0, help="seconds for one call (60)")
    group.addoption("--backbay-device", default="", help="place everything on this device")
    group.addoption(
        "--backbay-option", action="append", default=[], metavar="NAME=VALUE", help="for the backend"
    )
    parser.addini("backbay_backend", "the backend that the conformance suite tries", default="")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "profile(name): the conformance profile that a test belongs to")
    config.addinivalue_line("markers", "op(name): the op, or scenario, that a test tries")
    if not backend_of(config):
        return
    from backbay import BackbayError

    from .runner.selection import names
    from .suite.profiles import PROFILES

    try:
        every = {*PROFILES, *[name for _, name in names()]}
    except BackbayError as error:  # another package's scenarios cannot be loaded
        raise pytest.UsageError(str(error)) from None
    for name in sorted(every):
        config.addinivalue_line("markers", f"{PREFIX}{name}: calls of the conformance suite")


def backend_of(config: pytest.Config) -> str:
    return config.getoption("--backbay-backend") or str(config.getini("backbay_backend"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for each case and scenario, marked with its profile and its op."""
    if "backbay_case" not in metafunc.fixturenames:
        return
    config = metafunc.config
    if not backend_of(config):
        raise pytest.UsageError(
            "name the backend: --backbay-backend NAME, or backbay_backend in the configuration"
        )
    from .runner.selection import SelectionError, select

    profiles = config.getoption("--backbay-profile")
    try:
        keys = select(profiles.split(",") if profiles else None)
    except SelectionError as error:
        raise pytest.UsageError(str(error)) from None
    metafunc.parametrize("backbay_case", [_parameter(*key) for key in keys])


def _parameter(profile: str, name: str) -> Any:
    marks = [pytest.mark.profile(profile), pytest.mark.op(name)]
    marks += [getattr(pytest.mark, PREFIX + word) for word in dict.fromkeys((profile, name))]
    return pytest.param((profile, name), id=f"{profile}-{name}", marks=marks)


@pytest.fixture(scope="session")
def backbay_pool(request: pytest.FixtureRequest) -> Iterator[WorkerSupervisor]:
    """A worker process of this test process, in which the backend runs."""
    from backbay.cli import parse_option

    from .checks.witness import witness_name
    from .runner.selection import RunSettings
    from .runner.workers.supervisor import WorkerSupervisor
    from .suite.lab import OpenSettings

    option: Any = request.config.getoption
    options = dict(parse_option(text) for text in option("--backbay-option"))
    seed, timeout = option("--backbay-seed"), option("--backbay-timeout")
    if seed is None:
        seed = int(option("--hypothesis-seed", None) or 0)
    opening = OpenSettings(options, option("--backbay-device"))
    backend = backend_of(request.config)
    against = witness_name("", backend)
    supervisor = WorkerSupervisor(
        RunSettings(backend, seed, timeout, opening=opening, against=against, keeps=True)
    )
    yield supervisor
    supervisor.close()
