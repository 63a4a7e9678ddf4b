"""What a message says: the first wrong element with its operands, and plain numbers."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import conform

from backbay_conformance import Outcome, Report, run
from backbay_conformance.report.html import page
from backbay_conformance.report.terminal import matrix, show_failure, show_failures
from backbay_conformance.runner.run import run_items
from backbay_conformance.runner.selection import RunSettings, items
from backbay_conformance.suite.lab import lab_for


def failures(name: str, op: str, **more: object) -> list[Outcome]:
    chosen = {"ops": [op], "size": "smoke", "profiles": ["core"], **more}
    return run(f"broken_backends:{name}", **chosen).failures  # type: ignore[arg-type]


def test_a_message_shows_the_first_wrong_element() -> None:
    told = [outcome.message for outcome in failures("Imprecise", "tanh") if outcome.check == "bound"]
    assert told
    assert all(message.count("expected") == 1 for message in told)


def test_a_message_shows_the_operands_at_the_first_wrong_element() -> None:
    told = next(o.message for o in failures("WrongColumn", "mulmat") if "with w[:, 0] = " in o.message)
    assert "x[:, " in told
    sums = [outcome for outcome in failures("Coarse", "mul") if outcome.check == "exact"]
    for outcome in sums:
        place = outcome.message.partition("at ")[2].partition(" expected")[0].rstrip(",)").lstrip("(")
        assert f"x[{place}] = " in outcome.message.replace(",]", "]")


def test_the_operands_are_those_of_the_expected_value() -> None:
    outcome = next(o for o in failures("Coarse", "mul") if o.check == "exact" and "t2[" in o.message)
    told = outcome.message.split("  with ")[1].partition("\n")[0]
    first, second = (float(part.split(" = ")[1]) for part in told.split("; "))
    assert f"expected {first * second!r}" in outcome.message


def test_no_message_and_no_table_has_a_repr_of_numpy() -> None:
    report = run("broken_backends:WrongEverywhere", size="smoke", ops=None, stop_after=60)
    assert report.failures
    assert "np." not in json.dumps(report.as_dict())
    assert "<DType" not in json.dumps(report.as_dict())


def test_a_kernel_with_a_result_of_the_wrong_shape_is_not_over_claimed() -> None:
    for op in ("tanh", "rows"):
        found = failures("WrongShape", op)
        assert {outcome.check for outcome in found} == {"shape"}
        assert f"the kernel of {op} returned shape" in found[0].message


def test_the_program_of_a_small_failure_shows_its_numbers() -> None:
    lab = lab_for("broken_backends:Imprecise")
    (best, *_) = run_items(
        lab, items([("core", "tanh")], "smoke"), RunSettings("broken_backends:Imprecise", 0)
    )
    assert "from_floats([" in best.script
    assert "b85decode" not in best.script
    done = subprocess.run([sys.executable, "-c", best.script], capture_output=True, text=True, check=True)
    assert "expected" in done.stdout


@pytest.mark.fault(
    "a kernel raises what no plugin may raise",
    "a failed call that names the line of the plugin; with --debug the whole traceback",
)
def test_a_call_that_raises_names_the_line_in_the_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--op", "sqrt", "--size", "tiny", "--failures", str(tmp_path))
    assert conform("broken_backends:NoRoots", *words) == 1
    told = capsys.readouterr().out
    assert re.search(r"ValueError: no root today \(broken_backends.py:\d+, in root_of\)", told)
    assert "Traceback" not in told
    assert conform("--debug", "--trust", "--repro", str(next(tmp_path.iterdir()))) == 1
    told = capsys.readouterr().out
    assert "Traceback" in told
    assert 'raise ValueError("no root today")' in told


def test_a_program_that_is_right_alone_is_told_with_the_check_that_failed(tmp_path: Path) -> None:
    words = ("--op", "scale", "--size", "smoke", "--profile", "core", "--failures", str(tmp_path))
    assert conform("broken_backends:OneScale", *words) == 1
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    told = "the program alone is right: the fault is in the check 'together': Two calls in one graph"
    assert {failure["check"] for failure in found} == {"together"}
    assert all(told in failure["message"] for failure in found)


def test_the_program_runs_the_contiguous_call_if_that_is_the_wrong_one(tmp_path: Path) -> None:
    words = ("--op", "tanh", "--size", "smoke", "--profile", "core", "--failures", str(tmp_path))
    assert conform("broken_backends:Laid", *words) == 1
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    laid = min((f for f in found if f["check"] == "layout"), key=lambda failure: len(failure["choices"]))
    assert "the program alone" not in laid["message"]
    printed: list[np.ndarray] = []
    exec(laid["script"], {"print": lambda *values, **_: printed.append(np.ravel(values[-1]))})
    got, expected = printed
    assert np.allclose(got, expected + 0.5)


def test_other_messages_of_a_failing_scenario_are_told_too() -> None:
    messages = ["weights grew\n  by much", "experts grew", "experts grew", "windows grew"]
    failed = [
        Outcome(f"memory/booked/{turn}", "failed", check="memory", message=message)
        for turn, message in enumerate(messages)
    ]
    text = io.StringIO()
    assert show_failures(failed, text) == 3
    assert "  also memory/booked/2: experts grew\n  also memory/booked/3: windows grew\n" in text.getvalue()


def test_the_terminal_shows_no_packed_data() -> None:
    text = io.StringIO()
    outcome = Outcome("core/add/0", "failed", script="y = data('c-muN')", packed=True)
    show_failure(outcome, text)
    assert "data(" not in text.getvalue()
    assert "--failures" in text.getvalue()


def test_failing_rows_come_first() -> None:
    report = Report("some", 0, "smoke", ("core",))
    report.add(Outcome("core/add/0", dtype="f32"))
    report.add(Outcome("core/tanh/0", "failed", dtype="f32", check="bound"))
    report.add(Outcome("graph/good/0"))
    report.add(Outcome("graph/wrong/0", "failed", check="graph"))
    names = [line.split()[1] for line in matrix(report, colour=False)[1:-1]]
    assert names == ["tanh", "wrong", "add", "good"]
    text = page(report)
    assert text.index("> tanh<") < text.index("> add<")
    assert text.index("> wrong<") < text.index("> good<")


def test_the_dumped_bound_holds_the_rounding_of_the_result(tmp_path: Path) -> None:
    """float16 rounds far more coarsely than the sum in the case's formula."""

    failures, data = tmp_path / "failures", tmp_path / "data"
    conform("broken_backends:Imprecise", "--size", "smoke", "--op", "tanh", "--failures", str(failures))
    one = next(path for path in failures.iterdir() if json.loads(path.read_text())["dtype"] == "f16")
    conform("cpu_ref", "--repro", str(one), "--dump", str(data))
    expected, bound, got = (np.load(data / f"{name}0.npy") for name in ("expected", "bound", "got"))
    assert (np.abs(got.astype(np.float64) - expected) <= bound).all()


@pytest.mark.parametrize("name", ["cache_life", "engine_causal_cache"])
def test_a_life_is_told_without_reprs(name: str) -> None:
    found = run("broken_backends:WrongRope", ["cache"], ops=[name], size="smoke").failures
    assert found
    assert "np." not in found[0].message
    assert "<DType" not in found[0].message
