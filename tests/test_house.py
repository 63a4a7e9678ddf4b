"""The house: pages made from the code are up to date, and no room is crowded."""

import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from inspect import isclass
from pathlib import Path

from doc_blocks import ROOT

import backbay.plugin

SOURCES = sorted(ROOT.glob("*/src/*")) + sorted(ROOT.glob("*/*/src/*"))
MODULES = [path for source in SOURCES if source.suffix != ".egg-info" for path in source.rglob("*.py")]
DOORS = (
    "backbay",
    "backbay.gguf",
    "backbay.kernels",
    "backbay.plugin",
    "backbay_conformance",
    "backbay_conformance.plugin",
    "backbay_engine.api",
    "backbay_engine.plugin",
    "backbay_server",
)
FAMILIES = ("ops", "cases")  # many of one kind may lie side by side


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_door_for_backend_authors_has_few_names_and_none_of_pythons_own():
    own = [name for name in vars(backbay.plugin) if not name.startswith("_") and name != "annotations"]
    assert len(own) <= 45
    assert backbay.plugin.ShapeError is backbay.ShapeError  # a name of contract 1.1
    assert not hasattr(backbay.plugin, "__all__")
    assert not hasattr(backbay.plugin, "__path__")


def test_the_public_names_are_those_of_the_page():
    assert run("lab/tools/public_names.py", "--check").returncode == 0, (
        "public names changed: run `make api`; an added name raises the minor number of the contract's version, a "
        "changed or removed one its major number"
    )


def test_the_picture_and_the_list_of_rooms_are_those_of_the_code():
    assert run("lab/tools/architecture.py", "--check").returncode == 0, "run `make docs`"


def test_modules_that_the_page_names_are_there():
    page = (ROOT / "docs" / "architecture.md").read_text()
    names = {Path(path).name for path in re.findall(r"`([^`\s]+\.py)`", page)}
    assert len(names) > 20
    assert names <= {path.name for path in (*MODULES, *ROOT.glob("lab/*/*.py"))}


def test_the_table_of_faults_is_that_of_the_tests():
    assert run("lab/tools/faults.py", "--check").returncode == 0, "run `make docs`"


def test_the_tables_of_the_server_are_those_of_its_code():
    assert run("lab/server/tables.py", "--check").returncode == 0, "run `make docs`"


def test_no_module_is_longer_than_400_lines():
    assert MODULES
    assert [str(path) for path in MODULES if len(path.read_text().splitlines()) > 400] == []


def test_no_room_has_more_than_14_modules():
    crowded = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert crowded
    assert not {str(room): n for room, n in crowded.items() if n > 14 and room.name not in FAMILIES}


def test_no_two_classes_that_the_doors_promise_share_a_name():
    doors = map(import_module, DOORS)
    classes = {
        (name, promised)
        for door in doors
        for name, promised in vars(door).items()
        if isclass(promised) and promised.__module__.startswith("backbay")
    }
    assert len(classes) > 100
    assert len(classes) == len({name for name, _ in classes})
