"""In a control group with less memory than a model needs, loading fails with an error: nobody is killed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from small_llama import write_small_llama

import backbay
from backbay import BackendParams
from backbay_engine import estimate

MODEL = Path(__file__).parents[3] / "examples" / "models" / "backbay-tiny-f16.gguf"
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
@pytest.mark.few(1)
def test_a_load_that_does_not_fit_the_group_is_an_error(group: Path, name: str):
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, name, str(MODEL), str(group)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["NoMemoryError", "True", "685"], (
        done.returncode,
        done.stdout,
        done.stderr,
    )


LOADING = """
import json, logging, os, pathlib, sys
import backbay
from backbay import BackendParams
from backbay_engine import load

name, path, options, group = sys.argv[1:]
logging.disable()
pathlib.Path(group).write_text(str(os.getpid()))
try:
    with load(path, name, params=BackendParams(num_threads=2, options=json.loads(options))) as llm:
        llm.generate([n % 250 for n in range(llm.context - 8)], max_tokens=4, temperature=0)
        print("ran")
except backbay.NoMemoryError as error:
    print("refused", sum(memory.status.name == "Failed" for *_, memory in error.memory.rows()))
"""


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of some 40 MiB, whose weights onnx packs, cpu_ref decodes, and ggml may rearrange."""
    path = tmp_path_factory.mktemp("models") / "quantized.gguf"
    return write_small_llama(path, layers=40, head=128, dtype=gguf.GGMLQuantizationType.Q8_0)


@pytest.mark.fault(
    "a container with less memory than the model needs", "NoMemoryError with the entry marked, or an answer"
)
@pytest.mark.parametrize("options", [{}, {"weights": "copied"}], ids=["default", "copied"])
@pytest.mark.parametrize("name", sorted(backbay.backends()))
@pytest.mark.few(1)
def test_no_limit_gets_the_process_killed(group: Path, quantized: Path, name: str, options: dict[str, str]):
    told = estimate(quantized, name, params=BackendParams(num_threads=2, options=options)).total()
    heard = []
    for limit in (told // 2, told + (8 << 20), told + (24 << 20), 2 * told + (200 << 20)):
        (group.parent / "memory.limit_in_bytes").write_text(str(limit))
        words = [name, str(quantized), json.dumps(options), str(group)]
        command = [sys.executable, "-W", "ignore", "-c", LOADING, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, (limit, done.returncode, done.stderr)
        heard.append(done.stdout.strip())
    assert heard[0] == "refused 1"
    assert heard[-1] == "ran"
    assert set(heard) <= {"refused 1", "ran"}
