"""Host memory: the smallest of what the host has and what control groups allow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backbay.memory.host_memory import host_memory

MIB = 1 << 20
MEMINFO = """MemTotal:       1048576 kB
MemFree:         102400 kB
MemAvailable:    819200 kB
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in {"proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_page_cache_is_free(tmp_path):
    assert host_memory(tree(tmp_path, {})) == (1024 * MIB, 800 * MIB)


def test_a_group_of_version_2_limits(tmp_path):
    files = {
        "proc/self/cgroup": "0::/app/worker\n",
        "sys/fs/cgroup/app/worker/memory.max": "max\n",
        "sys/fs/cgroup/app/worker/memory.current": f"{90 * MIB}\n",
        "sys/fs/cgroup/app/memory.max": f"{400 * MIB}\n",
        "sys/fs/cgroup/app/memory.current": f"{300 * MIB}\n",
        "sys/fs/cgroup/app/memory.stat": f"anon 5\ninactive_file {100 * MIB}\nactive_file {20 * MIB}\n",
    }
    assert host_memory(tree(tmp_path, files)) == (400 * MIB, 220 * MIB)


def test_a_group_of_version_1_limits(tmp_path):
    files = {
        "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/abc\n0::/\n",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": f"{256 * MIB}\n",
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": f"{56 * MIB}\n",
        "sys/fs/cgroup/memory/docker/abc/memory.stat": f"cache 1\ntotal_active_file {2 * MIB}\ntotal_inactive_file {4 * MIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{500 * MIB}\n",
    }
    assert host_memory(tree(tmp_path, files)) == (256 * MIB, 206 * MIB)


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    files = {
        "proc/self/cgroup": "0::/system.slice/docker-abc.scope\n",
        "sys/fs/cgroup/memory.max": f"{512 * MIB}\n",
        "sys/fs/cgroup/memory.current": f"{600 * MIB}\n",
    }
    assert host_memory(tree(tmp_path, files)) == (512 * MIB, 0)


def test_a_system_that_says_nothing(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert host_memory(tmp_path) == (None, None)


def test_a_real_group_limits_a_process():
    own = next(
        (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":memory:" in line), ""
    )
    group = Path("/sys/fs/cgroup/memory") / own.rpartition(":")[2].lstrip("/") / "backbay-test"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        (group / "memory.limit_in_bytes").write_text(str(200 * MIB))
        program = (
            "import json, os, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\n"
            "from backbay.memory.host_memory import host_memory; print(json.dumps(host_memory()))"
        )
        command = [sys.executable, "-c", program, group / "cgroup.procs"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        total, free = json.loads(done.stdout)
    finally:
        group.rmdir()
    assert total == 200 * MIB
    assert 100 * MIB < free < 200 * MIB
