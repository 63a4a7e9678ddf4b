"""The suite under pytest, as a third party runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
HERE = Path(__file__).parent
COMMON = (
    "--pyargs",
    "backbay_conformance",
    "--backbay-size",
    "smoke",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:randomly",
)


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", ":".join(entry for entry in sys.path if entry))


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    from importlib.metadata import entry_points

    installed = any(point.name == "backbay_conformance" for point in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "backbay_conformance.pytest_plugin")
    return pytester.runpytest_subprocess(*plugin, *COMMON, *words)


def test_cases_are_selected_by_name_and_marker(pytester: pytest.Pytester) -> None:
    chosen = ("-k", "rows", "-m", "conformance_quant and not conformance_set_rows")
    run(pytester, "--backbay-backend", "cpu_ref", *chosen).assert_outcomes(passed=1)


def test_a_wrong_backend_fails_with_a_program(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--backbay-backend", "broken_backends:Imprecise", "-k", "tanh or neg")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*calls failed, seed 0*", "*FAILED core/tanh/*"])


def test_what_is_unsupported_is_skipped(pytester: pytest.Pytester) -> None:
    run(pytester, "--backbay-backend", "broken_backends:Without", "-k", "tanh").assert_outcomes(skipped=1)


def test_no_backend_is_a_usage_error(pytester: pytest.Pytester) -> None:
    result = run(pytester)
    assert result.ret != 0
    assert "--backbay-backend" in "\n".join(result.outlines + result.errlines)


@pytest.mark.thorough
def test_it_runs_on_several_processes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    run(pytester, "--backbay-backend", "cpu_ref", "-n", "2", "-k", "core-add or core-sub").assert_outcomes(
        passed=3
    )
