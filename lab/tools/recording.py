"""Draws docs/recording.svg: a session in a terminal, with what its commands really print.

    python lab/tools/recording.py            # run the commands and draw
    python lab/tools/recording.py --check    # run them and compare

Only commands that print the same on each machine belong into the session.
"""

import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "recording.svg"
RUN = 'backbay run examples/models/backbay-tiny-f16.gguf --backend {} --quiet -p "sum 417 268 ="'
SESSION = [
    *map(RUN.format, ("cpu_ref", "ggml", "onnx")),
    "backbay new-backend mine",
    "pip install -q -e backbay-mine",
    "backbay conform mine --size tiny | grep passed",
    "backbay conform mine --next | sed -n 1,4p",
]
COLUMNS, LINE, LETTER, MARGIN, BAR = 112, 18, 7.83, 16, 30
TYPED, PAUSE = 0.03, 1.2  # seconds for a letter, and for a look at a result
PROGRAMS = {
    "backbay": "import sys\nfrom backbay_command import console\nsys.exit(console())\n",
    "pip": "import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n",
}


def recorded() -> list[tuple[str, list[str]]]:
    """The commands and the lines that they print to standard output, run in an environment of their own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # pip and setuptools are those of this environment: the ones of a new environment may be old.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        [packages] = folder.glob("venv/lib/python*/site-packages")
        shared = [path for path in sys.path if Path(path).is_dir()]
        (packages / "shared.pth").write_text("\n".join(shared))
        for called, script in PROGRAMS.items():
            program = folder / "venv/bin" / called
            program.write_text(f"#!{folder}/venv/bin/python\n{script}")
            program.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")
        environment = {
            **os.environ,
            "PATH": f"{folder}/venv/bin:{os.environ['PATH']}",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # 0 switches isolation off
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        session = []
        for command in SESSION:
            ended = subprocess.run(
                ["bash", "-o", "pipefail", "-c", command],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                sys.exit(f"{command}\n{ended.stdout}{ended.stderr}")
            session.append((command, ended.stdout.rstrip("\n").split("\n") if ended.stdout else []))
        return session


def picture(session: list[tuple[str, list[str]]]) -> str:
    """The session as a picture: commands are typed one after the other, and what they print appears behind them."""
    drawn, row, now = [], 0, 0.5
    for command, printed in session:
        typed = _folded(f"$ {command}", "    ")
        drawn += [_text(row + i, line, "typed", now) for i, line in enumerate(typed)]
        row, now = row + len(typed), now + TYPED * len(command)
        lines = [part for line in printed for part in _folded(line, "")]
        drawn += [_text(row + i, line, "printed", now) for i, line in enumerate(lines)]
        row, now = row + len(lines), now + PAUSE
    width, height = round(COLUMNS * LETTER) + 2 * MARGIN, BAR + row * LINE + 2 * MARGIN
    style = (
        "text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre;opacity:0;animation:shown .1s forwards}"
        ".typed{fill:#7dd3fc;font-weight:bold}.printed{fill:#e2e8f0}@keyframes shown{to{opacity:1}}"
        "@media(prefers-reduced-motion){text{animation:none;opacity:1}}"
    )
    dots = "".join(
        f'<circle cx="{MARGIN + 6 + 18 * i}" cy="16" r="5" fill="{colour}"/>'
        for i, colour in enumerate(("#f87171", "#fbbf24", "#4ade80"))
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 {width} {height}">'
    panel = f'<rect width="{width}" height="{height}" rx="10" fill="#0f172a"/>'
    return "\n".join([head, f"<style>{style}</style>", panel + dots, *drawn, "</svg>\n"])


def _folded(line: str, indent: str) -> list[str]:
    keeps = {"drop_whitespace": False, "replace_whitespace": False, "break_on_hyphens": False}
    return wrap(line, COLUMNS, subsequent_indent=indent, **keeps) or [""]


def _text(row: int, line: str, kind: str, second: float) -> str:
    y = BAR + MARGIN + LINE * row + 13
    return f'<text x="{MARGIN}" y="{y}" class="{kind}" style="animation-delay:{second:.2f}s">{escape(line)}</text>'


if __name__ == "__main__":
    made = picture(recorded())
    if sys.argv[1:] == ["--check"]:
        sys.exit(PICTURE.read_text() != made)
    PICTURE.write_text(made)
