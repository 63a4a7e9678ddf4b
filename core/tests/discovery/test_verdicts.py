"""What a probe found is known to later processes, until something changes that it depends on."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pytest
from environment import GOOD, Environment

CHOOSE = "import backbay; print(backbay.choose('auto'))"
CHOOSE_SOON = """
import backbay
from backbay.discovery import probe

patient, probe.TIMEOUT, probe.GRACE = probe.probe, 200, 100
probe.probe = lambda entry, limit: patient(entry, limit if entry.name == "good" else 2)
print(backbay.choose('auto'))
"""


def counted(path: Path, then: str = "") -> str:
    """A plugin that leaves a mark each time it is imported."""
    source = GOOD.replace("\n    ", "\n")
    return f"open({str(path)!r}, 'a').write('x')\n{then}\n{source}"


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "marks"


@pytest.mark.fault(
    "a plugin hangs in each automatic choice of a backend",
    "stderr says what is waited for; later processes do not try the plugin for ten minutes",
)
def test_a_plugin_that_hangs_is_waited_for_once(environment: Environment, marks: Path) -> None:
    environment.install_backend("hang", counted(marks, "import time; time.sleep(600)"))
    environment.install_backend("good", GOOD)
    first, second = environment.python(CHOOSE_SOON), environment.python(CHOOSE)
    assert marks.read_text() == "x"
    assert re.search(
        "checking that these backends work on this machine, for up to 300 s: .*hang$", first.stderr
    )
    assert first.stdout.startswith("good: it works (not hang: it hung while")
    assert "`backbay doctor` tries it again" in second.stdout
    assert second.stderr == ""


@pytest.mark.thorough
def test_without_another_backend_one_that_hung_is_tried_again(environment: Environment, marks: Path) -> None:
    once = f"import os, time; os.path.getsize({str(marks)!r}) > 1 or time.sleep(600)"
    environment.install_backend("slow", counted(marks, once).replace("'a').write", "'a', 1).write"))
    first, second = environment.python(CHOOSE_SOON), environment.python(CHOOSE)
    assert "no installed backend works: slow: it hung" in first.stderr
    assert second.stdout == "slow: it works\n"
    assert marks.read_text() == "xx"


def test_a_plugin_that_works_is_not_tried_again(environment: Environment, marks: Path) -> None:
    environment.install_backend("good", counted(marks))
    for _ in range(2):
        assert environment.python(CHOOSE).stdout == "good: it works\n"
    assert marks.read_text() == "x"
    (listed,) = json.loads(environment.backbay("list", "--json").stdout)
    assert (listed["works"], listed["devices"][0]["free_memory"]) == (True, None)  # the memory was free then
    assert marks.read_text() == "x"


def test_a_plugin_is_not_tried_again_where_the_folder_has_metadata_of_its_own(
    environment: Environment, marks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `pip install .` leaves them in a clone: some processes name the folder, others call it ""."""
    (tmp_path / "clone" / "workspace.egg-info").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "clone")
    environment.install_backend("good", counted(marks))
    assert environment.python(CHOOSE).stdout == "good: it works\n"
    assert environment.backbay("list").returncode == 0
    assert marks.read_text() == "x"


def test_a_plugin_that_says_why_it_does_not_work_is_asked_each_time(
    environment: Environment, marks: Path
) -> None:
    environment.install_backend("odd", counted(marks, "raise ImportError('no driver')"))
    for _ in range(2):
        assert "no driver" in environment.python(CHOOSE).stderr
    assert marks.read_text() == "xx"


def test_a_change_of_the_plugin_or_of_the_environment_is_tried_anew(
    environment: Environment, marks: Path
) -> None:
    def tried(**variables: str) -> int:
        marks.unlink(missing_ok=True)
        environment.python(CHOOSE, **variables)
        return len(marks.read_text()) if marks.exists() else 0

    environment.install_backend("good", counted(marks))
    assert (tried(), tried()) == (1, 0)
    plugin = environment.site / "good_plugin.py"
    plugin.write_text(plugin.read_text() + "\n# changed")
    assert tried() == 1
    environment.install("another", {}, [], group="other")
    assert tried() == 1
    assert (tried(CUDA_VISIBLE_DEVICES="1"), tried()) == (1, 0)
    assert (tried(GOOD_MODE="x"), tried(EDITOR="x")) == (1, 0)
    assert tried(BACKBAY_NO_CACHE="1") == 1


def test_a_library_that_a_variable_names_is_looked_at(
    environment: Environment, marks: Path, tmp_path: Path
) -> None:
    environment.install_backend("good", counted(marks))
    library = tmp_path / "lib.so"
    for content in ("old", "newer"):
        library.write_text(content)
        for _ in range(2):
            environment.python(CHOOSE, BACKBAY_GGML_LIB=str(library))
    assert marks.read_text() == "xx"


@pytest.mark.parametrize("words", [("doctor",), ("list", "--refresh")])
def test_doctor_and_refresh_try_anew(environment: Environment, marks: Path, words: tuple[str, ...]) -> None:
    environment.install_backend("good", counted(marks))
    environment.python(CHOOSE)
    environment.backbay(*words)
    assert marks.read_text() == "xx"


def test_a_verdict_is_a_day_old_at_most(environment: Environment, marks: Path) -> None:
    environment.install_backend("good", counted(marks))
    environment.python(CHOOSE)
    (verdict,) = environment.cache.rglob("*.json")
    os.utime(verdict, (time.time() - 90_000,) * 2)
    environment.python(CHOOSE)
    assert marks.read_text() == "xx"


@pytest.mark.parametrize("content", ["3", "{}", '{"output": "", "died": 0, "time": "x"}', '{"priority": []}'])
@pytest.mark.few(1)
def test_a_verdict_that_is_none_is_found_anew(environment: Environment, marks: Path, content: str) -> None:
    environment.install_backend("good", counted(marks))
    environment.python(CHOOSE)
    (verdict,) = environment.cache.rglob("*.json")
    verdict.write_text(content)
    assert environment.python(CHOOSE).stdout == "good: it works\n"
    assert marks.read_text() == "xx"


def test_a_plugin_that_fails_to_open_is_tried_again_by_the_next_process(
    environment: Environment, marks: Path
) -> None:
    source = counted(marks).replace(
        "        kernels = kernel\n".replace("        ", "    ", 1),
        "    kernels = kernel\n\n    def __init__(self, *args):\n"
        f"        import os\n        if os.path.exists({str(marks) + '.gone'!r}):\n"
        "            raise ImportError('the driver is gone')\n        super().__init__(*args)\n",
    )
    environment.install_backend("good", source)
    environment.python(CHOOSE)
    Path(f"{marks}.gone").touch()
    done = environment.python("import backbay; backbay.open()")
    assert "the driver is gone" in done.stderr
    assert list(environment.cache.rglob("*.json")) == []
