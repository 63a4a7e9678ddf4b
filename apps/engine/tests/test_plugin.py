"""The door for authors of models: enough for every architecture of the engine, and all that pages and examples import."""

import re
from pathlib import Path

import pytest

import backbay_engine

ROOT = Path(__file__).parents[3]
DOORS = {"backbay_engine", "backbay_engine.plugin"}


def test_every_name_of_the_engine_is_there():
    assert "load" in backbay_engine.__all__
    assert "annotations" not in backbay_engine.__all__
    assert all(hasattr(backbay_engine, name) for name in backbay_engine.__all__)


@pytest.mark.parametrize("path", [*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("examples/*.py")])
def test_pages_and_examples_import_only_the_doors(path: Path):
    modules = re.findall(r"^\s*(?:from|import) (backbay_engine[\w.]*)", path.read_text(), re.MULTILINE)
    assert set(modules) <= DOORS
