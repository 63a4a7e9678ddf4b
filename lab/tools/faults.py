"""Writes docs/reference/faults.md from the tests that carry the marker `fault`. `make docs` runs it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "faults.md"
BEGIN, END = "<!-- made by lab/tools/faults.py -->", "<!-- end -->"
AREAS = {  # heading, and the folders of its tests; the first that fits is taken
    "Model files": (
        "core/tests/gguf",
        "apps/engine/tests/models",
        "apps/engine/tests/files",
        "apps/engine/tests/test_load.py",
    ),
    "Memory": (
        "core/tests/memory",
        "apps/engine/tests/test_memory.py",
        "apps/engine/tests/test_control_groups.py",
    ),
    "Processes": (
        "apps/engine/tests/worker",
        "apps/engine/tests/runner/test_forks.py",
        "core/tests/backend/processes",
    ),
    "Pictures": ("apps/engine/tests/images",),
    "Requests": ("apps/engine/tests/runner", "apps/engine/tests/test_misuse.py", "apps/engine/tests/text"),
    "Plugins": ("core/tests/discovery", "core/tests/backend"),
    "Commands and the files that they write": ("core/tests", "apps/engine/tests/cli", "tests"),
    "Devices and libraries": ("plugins",),
    "The suite": ("conformance",),
    "Other": ("",),
}


@dataclass(frozen=True)
class InjectedFault:
    """A row of the page: what goes wrong, what the user sees, and the test that injects it."""

    what: str
    outcome: str
    path: str
    test: str

    def row(self) -> str:
        return f"| {self.what} | {self.outcome} | [`{self.test}`](../../{self.path}) |"


def faults_of(path: Path) -> Iterator[InjectedFault]:
    """The faults that a test file injects: on whole tests, and on single cases of one."""
    text = path.read_text()
    if "mark.fault(" not in text:
        return
    for test in ast.walk(ast.parse(text)):
        if not isinstance(test, ast.FunctionDef):
            continue
        for call in (node for decorator in test.decorator_list for node in ast.walk(decorator)):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fault":
                what, outcome = (ast.literal_eval(word) for word in call.args)
                where = str(path.relative_to(ROOT))
                yield InjectedFault(what, outcome, where, test.name.removeprefix("test_"))


def area(path: str) -> str:
    return next(name for name, folders in AREAS.items() if path.startswith(folders))


def tables() -> str:
    files = sorted(path for path in ROOT.rglob("test_*.py") if ".venv" not in path.parts)
    faults = [fault for path in files for fault in faults_of(path)]
    lines = [f"{len(faults)} faults."]
    for name in AREAS:
        if rows := [fault.row() for fault in faults if area(fault.path) == name]:
            lines += [
                "",
                f"## {name}",
                "",
                "| what goes wrong | what the user sees | test |",
                "|---|---|---|",
                *rows,
            ]
    return "\n".join(lines)


def main() -> int:
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    made = f"{before}{BEGIN}\n{tables()}\n{END}{after}"
    if "--check" in sys.argv:
        return int(made != page)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
