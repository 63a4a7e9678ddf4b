"""The memory report against a fresh process, and dry runs that take no memory in proportion to the context."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import backbay

MODEL = Path(__file__).parents[3] / "examples" / "models" / "backbay-tiny-f16.gguf"
BACKENDS = sorted(backbay.backends())
MIB = 1 << 20

if not Path("/proc/self/clear_refs").exists():
    pytest.skip("only Linux tells the largest resident memory, and forgets it", allow_module_level=True)

COMMON = """
import gc, json, logging, pathlib, sys, time
from backbay_engine import estimate, load
logging.disable()
path, name = sys.argv[1:]

def resident(what):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))
"""
USE = """
def use():
    with load(path, name, num_threads=2) as llm:
        count = llm.model.vocabulary_size
        llm.generate([n * 7919 % count for n in range(llm.context - 8)], max_tokens=4, temperature=0)
        return llm.memory().total()

def measured_use():
    gc.collect()
    before = resident("VmRSS")
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    booked = use()
    return booked, resident("VmHWM") - before

for _ in range(2):
    use()  # fills what Python and the C library keep
print(json.dumps([measured_use() for _ in range(5)]))
"""
DRY = """
for _ in range(2):
    estimate(path, name, context=4096)
before, start = resident("VmHWM"), time.process_time()
told = estimate(path, name, context=2**29)
print(json.dumps([told.total(), resident("VmHWM") - before, time.process_time() - start]))
"""


def answer(program: str, name: str) -> Any:
    command = [sys.executable, "-c", COMMON + program, str(MODEL), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.few(1)
def test_the_report_of_a_small_model_is_what_a_fresh_process_takes(name: str) -> None:
    """In the middle of five uses: threads place their blocks anew in each."""
    uses = answer(USE, name)
    booked, grown = (statistics.median(column) for column in zip(*uses, strict=True))
    assert abs(booked - grown) < max(2 * MIB, booked // 100), [
        (told / MIB, taken / MIB) for told, taken in uses
    ]


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.few(1)
def test_a_dry_run_takes_nothing_in_proportion_to_the_context(name: str) -> None:
    booked, grown, seconds = answer(DRY, name)
    assert booked > 100 << 30
    assert grown < 20 * MIB, grown / MIB
    assert seconds < 30  # of the processor; one second is usual
