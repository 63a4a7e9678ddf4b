"""Adding a question: the lines that CONTRIBUTING shows are all that it takes, wherever the model is."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from textwrap import indent

from doc_blocks import ROOT
from scripted_model import write_scripted_model

PACKAGES = ("apps/engine", "apps/server", "apps/ray")
HELPERS = (ROOT / "apps/ray/tests", ROOT / "apps/engine/tests/inputs")
BLOCK = re.compile(
    r"^```python\n# file: apps/engine/src/backbay_engine/(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
METHODS = "    def state(self) -> State:\n"
ASK = """
import sys
from pathlib import Path

import backbay_engine
from backbay_engine import load
from local_links import LocalReplicas, model_of, replica_of, running_loop

path, copy = map(Path, sys.argv[1:])
assert Path(backbay_engine.__file__).is_relative_to(copy)

def ask(llm):
    with llm:
        llm.generate([97, 98, 99], max_tokens=1, temperature=0)
        print(llm.count_tokens())

ask(load(path, "cpu_ref"))
ask(load(path, "cpu_ref", worker=True))
with running_loop() as loop:
    replica = replica_of(path)
    ask(model_of(LocalReplicas([replica]), loop))
"""


def test_the_lines_of_contributing_add_a_question(tmp_path: Path) -> None:
    for package in PACKAGES:
        copytree(ROOT / package / "src", tmp_path / package / "src", ignore=ignore_patterns("__pycache__"))
    shown = BLOCK.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert [file for file, _ in shown] == ["port/questions.py", "llm.py"]
    for file, lines in shown:
        path = tmp_path / "apps/engine/src/backbay_engine" / file
        text = path.read_text()
        if file == "llm.py":
            assert METHODS in text
            path.write_text(text.replace(METHODS, f"{indent(lines, '    ')}\n{METHODS}"))
        else:
            path.write_text(f"{text}\n\n{lines}")
    sources = [*(tmp_path / package / "src" for package in PACKAGES), *HELPERS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))}
    model = write_scripted_model(tmp_path / "scripted.gguf")
    command = [sys.executable, "-c", ASK, str(model), str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["3", "3", "3"], done.stdout + done.stderr
