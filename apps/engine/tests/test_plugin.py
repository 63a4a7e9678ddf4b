"""The door for authors of models: enough for every architecture of the engine, and all that pages and examples import."""

import ast
import re
from pathlib import Path

import pytest

import backbay_engine
from backbay_engine import plugin

ROOT = Path(__file__).parents[3]
DOORS = {"backbay_engine", "backbay_engine.plugin"}
ARCHITECTURES = sorted(Path(backbay_engine.__file__).parent.glob("models/architectures/[!_]*.py"))


def imports(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]


def test_every_name_of_the_engine_is_there():
    assert "load" in backbay_engine.__all__
    assert "annotations" not in backbay_engine.__all__
    assert all(hasattr(backbay_engine, name) for name in backbay_engine.__all__)


@pytest.mark.parametrize("path", ARCHITECTURES, ids=lambda path: path.stem)
def test_an_architecture_needs_nothing_behind_the_door(path: Path):
    needed = {alias.name for node in imports(path.read_text()) if node.level for alias in node.names}
    assert needed <= {*vars(plugin), *backbay_engine.__all__}


@pytest.mark.parametrize("path", [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("examples/*.py")])
def test_pages_and_examples_import_only_the_doors(path: Path):
    modules = re.findall(r"^\s*(?:from|import) (backbay_engine[\w.]*)", path.read_text(), re.MULTILINE)
    assert set(modules) <= DOORS
