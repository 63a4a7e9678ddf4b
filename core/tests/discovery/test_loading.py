"""Plugins load one at a time, only when asked for; what is wrong with one is said, and harms no other."""

from __future__ import annotations

import pytest
from environment import GOOD, Environment

OPEN = """
    import backbay
    backbay.open(backend={name!r}).close()
"""
BROKEN = {
    "import error": (
        "import a_library_that_is_not_there",
        "backend 'bad' of backbay-bad 1.0: ModuleNotFoundError: No module named 'a_library_that_is_not_there'",
    ),
    "exit on import": ("raise SystemExit(3)", "backend 'bad' of backbay-bad 1.0: SystemExit: 3"),
    "other contract": (
        GOOD.replace("= CONTRACT_VERSION", "= (CONTRACT_VERSION.major + 1, 0)"),
        "Good was written for contract version 2.0, this backbay has 1.2",
    ),
    "later minor contract": (
        GOOD.replace("= CONTRACT_VERSION", "= (CONTRACT_VERSION.major, CONTRACT_VERSION.minor + 1)"),
        "Good was written for contract version 1.3, this backbay has 1.2",
    ),
    "contract as a fraction": (
        GOOD.replace("= CONTRACT_VERSION", "= 1.1"),
        "Good.contract_version: a contract version is two numbers, such as '1.1', got 1.1",
    ),
    "final method": (
        GOOD.replace("contract_version =", "def get(self, name): pass\n        contract_version ="),
        "Good overrides get, which core needs as it is; a plugin may override allocate, avoidances, batch_invariant, book_weights,",
    ),
    "private method of core": (
        GOOD.replace("contract_version =", "def _read(self): pass\n        contract_version ="),
        "Good hides _read, which core's classes use inside; choose other names",
    ),
    "no contract": (
        GOOD.replace("contract_version = CONTRACT_VERSION", "pass"),
        "Good states no contract version; this backbay has 1",
    ),
    "misspelled hook": (
        GOOD.replace("def backbay_backend", "def backbay_backnd"),
        "unknown hook 'backbay_backnd'",
    ),
    "misspelled hook, unmarked": (
        GOOD.replace("@hookimpl", "").replace("def backbay_backend", "def backbay_backends"),
        "decorated with @backbay.hookimpl; perhaps backbay_backends is misspelled",
    ),
    "unmarked hook": (
        GOOD.replace("@hookimpl", ""),
        "bad_plugin.backbay_backend is not marked as a hook: decorate it with @backbay.hookimpl",
    ),
    "hook with a parameter": (
        GOOD.replace("def backbay_backend()", "def backbay_backend(config)"),
        "Argument(s) {'config'} are declared in the hookimpl but can not be found in the hookspec; backbay.discovery.hook_specs",
    ),
    "no hook": ("x = 1", "bad_plugin has no hook backbay_backend()"),
    "hook that raises": (
        GOOD.replace("return Good", "return 1 / 0"),
        "backend 'bad' of backbay-bad 1.0: ZeroDivisionError: division by zero",
    ),
    "hook that returns nothing": (
        GOOD.replace("return Good", "pass"),
        "a backend is a subclass of backbay.Backend, got None",
    ),
    "no Backend": (
        GOOD.replace("return Good", "return dict"),
        "a backend is a subclass of backbay.Backend, got <class 'dict'>",
    ),
    "abstract": (
        GOOD.replace("KernelBackend,", "Backend as KernelBackend,"),
        "Good does not implement allocate, compile, devices, precision, weight",
    ),
    "no library": (
        GOOD.replace("contract_version =", "def __init__(self, *args): open('/there/is/no/such.so')\n        contract_version ="),
        "backend 'bad': FileNotFoundError: [Errno 2] No such file or directory: '/there/is/no/such.so'",
    ),
}  # fmt: skip


@pytest.mark.fault(
    "a plugin raises when it is imported", "BackendUnavailableError with the reason; the others work"
)
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.few(9)
def test_a_broken_plugin_is_unavailable_with_the_reason_and_harms_no_other(
    environment: Environment, case: str
) -> None:
    source, message = BROKEN[case]
    environment.install_backend("bad", source)
    environment.install_backend("good", GOOD)
    done = environment.python(
        """
        import backbay
        assert list(backbay.backends()) == ["bad", "good"]
        with backbay.open(backend="good") as backend:
            assert backend.name == "good"
        try:
            backbay.open(backend="bad")
        except backbay.BackendUnavailableError as error:
            print(error)
        """
    )
    assert done.returncode == 0, done.stderr
    assert message in done.stdout


def test_the_cause_of_a_failed_import_is_kept(environment: Environment) -> None:
    environment.install_backend("bad", "import a_library_that_is_not_there")
    done = environment.python(OPEN.format(name="bad"))
    assert "The above exception was the direct cause" in done.stderr


def test_a_good_plugin_runs_and_knows_its_name(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    done = environment.python(
        """
        import numpy as np
        import backbay
        with backbay.open(None, backend="good") as backend, backend.new_context() as ctx:
            y = ctx.from_floats(np.eye(2)).mulmat(ctx, ctx.from_floats([[1.0, 2.0]]))
            ctx.compute(y)
            print(backend.name, y.floats().tolist())
        """
    )
    assert done.stdout == "good [1.0, 2.0]\n", done.stderr


def test_what_is_installed_is_known_without_importing_it(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    done = environment.python(
        """
        import sys
        import backbay
        assert not {"pluggy", "importlib.metadata", "gguf", "subprocess"} & sys.modules.keys()
        entry = backbay.backends()["good"]
        print(entry.name, entry.distribution, entry.version, entry.module)
        assert "good_plugin" not in sys.modules
        print(entry.load().__name__)
        assert "good_plugin" in sys.modules
        """
    )
    assert done.stdout == "good backbay-good 1.0 good_plugin\nGood\n", done.stderr


def test_opening_one_plugin_imports_no_other(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("bad", "import os; os._exit(7)")
    done = environment.python(OPEN.format(name="good"))
    assert done.returncode == 0, done.stderr


def test_an_adapter_is_opened_by_name_and_never_listed_or_chosen(environment: Environment) -> None:
    environment.install("backbay-any", {"any": GOOD}, ["any = any"], group="backbay.adapters")
    done = environment.python("""
        import backbay
        print(sorted(backbay.backends()))
        with backbay.open(backend="any") as backend:
            print(backend.name)
        try:
            backbay.open()
        except backbay.BackendUnavailableError as error:
            print(error)
    """)
    assert done.stdout.startswith("[]\nany\nno backend is installed"), done.stderr


@pytest.mark.fault("two distributions provide a backend of one name", "an error naming both")
def test_two_plugins_of_one_name_are_an_error_that_names_both(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install("another", {"another_plugin": GOOD}, ["good = another_plugin"], version="2.5")
    environment.install_backend("fine", GOOD)
    done = environment.python(OPEN.format(name="good"))
    assert "backbay.errors.BackendUnavailableError: backend 'good' is provided by" in done.stderr
    assert "backbay-good 1.0" in done.stderr
    assert "another 2.5" in done.stderr
    assert environment.python(OPEN.format(name="fine")).returncode == 0


def test_a_distribution_with_unreadable_entry_points_hides_no_other(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install("mad", {}, ["this is no entry point"])
    done = environment.python("import backbay; print(list(backbay.backends()))")
    assert done.stdout == "['good']\n", done.stderr


def test_an_unknown_name_is_answered_with_the_nearest_ones(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    environment.install_backend("other", GOOD)
    done = environment.python(OPEN.format(name="goood"))
    wanted = "UnknownBackendError: no backend 'goood'; installed: good, other; did you mean 'good'?"
    assert wanted in done.stderr


def test_an_unknown_name_of_the_environment_variable_says_where_it_is_from(environment: Environment) -> None:
    environment.install_backend("good", GOOD)
    done = environment.python("import backbay; backbay.open()", BACKBAY_BACKEND="goood")
    assert "no backend 'goood', which BACKBAY_BACKEND asks for; installed: good" in done.stderr
