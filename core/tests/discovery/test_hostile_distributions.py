"""Distributions that are broken on purpose harm nobody else."""

import json
from textwrap import dedent

import pytest
from environment import GOOD, Environment

WRITES = """
import os
for descriptor in range(3, 40):
    try:
        os.write(descriptor, {data!r})
    except OSError:
        pass
"""


@pytest.mark.fault(
    "a plugin writes nonsense into the report of its probe", "the other plugins are listed and work"
)
@pytest.mark.parametrize(
    ("data", "end"),
    [
        (b"not json\n", ""),
        (b'{"stage": "hal', "os._exit(9)"),
        (b'[1, 2]\n{"devices": 5}\n{"kernels": [1]}\n', "raise ImportError('no')"),
        (b'{"details": 3, "priority": "x"}\n', "raise ImportError('no')"),
        (b"\xff\xfe\n", ""),
    ],
)
@pytest.mark.few(2)
def test_a_plugin_that_writes_into_the_report_of_its_probe(environment: Environment, data: bytes, end: str):
    environment.install_backend("hostile", f"{WRITES.format(data=data)}\n{end}\n{dedent(GOOD)}")
    environment.install_backend("good", GOOD)
    done = environment.backbay("list", "--json")
    assert done.returncode == 0, done.stderr
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert listed["good"]["works"]
    assert set(listed) == {"good", "hostile"}


@pytest.mark.fault("a distribution's METADATA is not UTF-8", "no traceback; the other plugins work")
def test_metadata_that_are_no_text(environment: Environment):
    environment.install_backend("odd", GOOD)
    environment.install_backend("good", GOOD)
    (metadata,) = environment.site.glob("backbay_odd*/METADATA")
    metadata.write_bytes(b"Metadata-Version: 2.1\nName: \xff\xfe\nVersion: 1.0\n")
    done = environment.backbay("list", "--json")
    assert "Traceback" not in done.stderr
    assert {entry["name"]: entry["works"] for entry in json.loads(done.stdout)}["good"]


def test_the_table_for_the_readme_leaves_out_what_cannot_be_loaded(environment: Environment):
    environment.install_backend("bad", "import nothing_of_this_name")
    environment.install_backend("good", GOOD)
    done = environment.backbay("list", "--markdown")
    assert (done.returncode, "| `good` |" in done.stdout, "bad" in done.stdout) == (0, True, False)
    assert "left out: backend 'bad'" in done.stderr


@pytest.mark.fault("a plugin leaves a thread that never ends", "the command exits")
@pytest.mark.parametrize(
    "lingering",
    [
        "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
        "import atexit, time; atexit.register(time.sleep, 600)",
    ],
)
@pytest.mark.few(1)
def test_a_plugin_that_never_ends_does_not_keep_the_command(environment: Environment, lingering: str):
    environment.install_backend("lingering", f"{lingering}\n{dedent(GOOD)}")
    done = environment.backbay("list", "--markdown")  # it loads the plugin in the command's own process
    assert (done.returncode, "| `lingering` |" in done.stdout) == (0, True)
    assert "the process ends without it" in done.stderr
