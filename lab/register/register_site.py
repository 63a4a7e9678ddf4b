"""Writes the register's site: `make site` puts it into build/site/register.

python lab/register/register_site.py FOLDER
"""

from __future__ import annotations

import json
import shutil
import sys
from html import escape
from pathlib import Path

from register_data import REGISTER, Json, register_data

from backbay_register.entry import BADGE, strange_files

HERE = Path(__file__).parent
PAGE = ("index.html", "register.css", "parts.js", "matrix.js", "views.js", "register.js")
DATA, FILES, LIST = "data.js", "entries", "entries.html"


def site_files(register: Path = REGISTER) -> dict[str, str | bytes]:
    """The text of each file of the site, by its path, and the files of all entries."""
    data = register_data(register)
    files: dict[str, str | bytes] = {name: (HERE / name).read_text() for name in PAGE}
    files[DATA] = f"const REGISTER = {json.dumps(data, separators=(',', ':'))};\n"
    files[LIST] = list_of_files(data)
    for entry in data["entries"]:
        folder = register / entry["folder"]
        for name in sorted({*entry["files"], BADGE} - set(strange_files(folder))):
            files[f"{FILES}/{entry['folder']}/{name}"] = (folder / name).read_bytes()
    return files


def list_of_files(data: Json) -> str:
    """A page without a script, from which every file is reached."""
    items = "".join(
        f"<li>{escape(entry['title'])} {escape(entry['version'])}, {entry['level']}: "
        + ", ".join(f'<a href="{FILES}/{entry["folder"]}/{name}">{name}</a>' for name in entry["files"])
        + "</li>\n"
        for entry in data["entries"]
    )
    head = '<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>The files of the register</title>'
    return f"{head}<h1>The files of the register</h1>\n<ul>\n{items}</ul></html>\n"


def build(folder: Path, register: Path = REGISTER) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in site_files(register).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
