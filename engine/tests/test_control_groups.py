"""In a control group with less memory than a model needs, loading fails with an error: nobody is killed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import backbay

MODEL = Path(__file__).parents[2] / "examples" / "models" / "backbay-tiny-f16.gguf"
LIMIT = 400 << 20
PROGRAM = """
import os, pathlib, sys
import backbay
from backbay_engine import estimate, load

name, path, group = sys.argv[1:]
pathlib.Path(group).write_text(str(os.getpid()))

def cache(context):
    return sum(memory.size for memory in estimate(path, name, context=context).cpu.cache)

context = (500 << 20) * 512 // cache(512)  # the cache alone takes more than the limit
try:
    load(path, name, context=context)
except backbay.NoMemoryError as error:
    print("NoMemoryError", "on CPU:0" in str(error))
with load(path, name, context=256) as llm:
    print(llm.generate("sum 417 268 =", temperature=0).text.strip())
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """The file through which a process enters a control group with little memory."""
    own = next(
        (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    folder = Path("/sys/fs/cgroup/memory") / own.rpartition(":")[2].lstrip("/") / "backbay-engine-test"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
    yield folder / "cgroup.procs"
    folder.rmdir()


@pytest.mark.fault(
    "a container has less memory than the cache needs", "NoMemoryError, not a kill by the system"
)
@pytest.mark.parametrize("name", sorted(backbay.backends()))
def test_a_load_that_does_not_fit_the_group_is_an_error(group: Path, name: str):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, name, str(MODEL), str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["NoMemoryError", "True", "685"], (
        done.returncode,
        done.stdout,
        done.stderr,
    )
