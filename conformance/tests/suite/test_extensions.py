"""Scenarios of other distributions run in the suite's profiles, and are never left out in silence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIOS = '''
import numpy as np
from backbay import DType
from backbay_conformance.plugin import ChoiceSource, Draw, Fault, Lab, Machine, action, scenario, walk

ROWS, OFF = 3, {off}


class Ring(Machine):
    """A cache of the last few rows, on the backend; and what it must hold."""

    def __init__(self, lab, choose):
        super().__init__(lab, choose)
        self.backend = lab.fresh()
        self.ctx = self.backend.new_context()
        self.rows = self.ctx.zeros(DType.F32, 4, ROWS)
        self.plain = np.zeros((ROWS, 4))
        self.at = 0

    @action(weight=3)
    def store(self, choose: ChoiceSource):
        row = np.full((1, 4), 1.0 + choose.below(100))
        with self.backend.new_context() as ctx:
            ids = ctx.input().from_ints([self.at % (ROWS - OFF)])
            ctx.forward(self.rows.set_rows(ctx, ctx.from_floats(row), ids)).compute()
        self.plain[self.at % ROWS] = row
        self.at += 1
        self.tell(f"store {row[0, 0]:g}")

    @action(lambda machine: machine.at > 0)
    def read(self, choose: ChoiceSource):
        self.tell("read")
        if not np.array_equal(self.rows.numpy(), self.plain):
            raise Fault("cache", "a row is not what was stored")

    def close(self):
        self.ctx.close()
        self.backend.close()


@scenario("cache", smoke=2, default=8)
def their_ring(lab: Lab, draw: Draw) -> None:
    """Rows stored one after the other, the oldest given up."""
    walk(Ring, lab, draw, 12)
'''
CONFORM = "import sys\nfrom backbay.cli import main\nsys.exit(main(['conform', *sys.argv[1:]]))"


def conform(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = ":".join([str(folder), *[entry for entry in sys.path if entry]])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", CONFORM, "cpu_ref", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def install(folder: Path, source: str) -> None:
    """What pip leaves of a distribution: a module, and metadata with its entry point."""
    (folder / "their_caches.py").write_text(source)
    info = folder / "their_caches-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-caches\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[backbay_conformance.scenarios]\nring = their_caches\n")


@pytest.mark.parametrize(("off", "state"), [(0, "full"), (1, "failing")])
@pytest.mark.few(1)
def test_a_machine_of_others_runs_in_the_cache_profile(tmp_path: Path, off: int, state: str) -> None:
    install(tmp_path, SCENARIOS.replace("{off}", str(off)))
    report, failures = tmp_path / "report.json", tmp_path / "failures"
    words = ("--profile", "cache", "--op", "their_ring", "--size", "smoke", "--json", str(report))
    done = conform(tmp_path, *words, "--failures", str(failures))
    assert done.returncode == (state == "failing"), done.stdout + done.stderr
    told = json.loads(report.read_text())
    assert "ring of their-caches 0.3" in told["facts"]["scenarios"]
    assert {cell["name"]: cell["state"] for cell in told["cells"]} == {"their_ring": state}
    if state == "failing":
        again = conform(tmp_path, "--repro", str(min(failures.iterdir())))
        assert again.returncode == 1
        assert "a row is not what was stored" in again.stdout


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    document = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text()
    (example,) = re.findall(r"```python\n([^`]*@scenario.*?)```", document, re.DOTALL)
    install(tmp_path, example)
    done = conform(tmp_path, "--op", "our_cache_forgets_nothing", "--size", "smoke")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        (
            "from backbay_conformance import scenario\n@scenario('caches')\ndef theirs(lab, draw): ...",
            "no profile 'caches'",
        ),
    ],
)
def test_scenarios_that_cannot_be_loaded_end_the_run(tmp_path: Path, source: str, why: str) -> None:
    install(tmp_path, source)
    done = conform(tmp_path, "--op", "neg", "--size", "smoke")
    assert done.returncode != 0
    assert "the scenarios 'their_caches' of their-caches 0.3 cannot be loaded" in done.stderr
    assert why in done.stderr
