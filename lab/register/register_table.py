"""Writes the table of entries into register/README.md. `make docs` runs it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from register_data import REGISTER, folders_of_entries

from backbay_register.entry import CERTIFICATE, Entry, read_record

README = REGISTER / "README.md"
PLACE = re.compile(r"(made by `make docs` -->\n).*?(<!-- end -->)", re.DOTALL)
HEAD = ["engine", "version", "run", "calls right", "wrong", "not computed", "level"]
LINE = ["---"] * 3 + ["---:"] * 3 + ["---"]


def table() -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (HEAD, LINE, *_rows()))


def _rows() -> Iterator[list[str]]:
    for folder in folders_of_entries(REGISTER):
        entry, record = Entry.read(folder), read_record(folder / CERTIFICATE)
        counts = record["counts"]
        numbers = counts["passed"], counts["failed"] + counts["known"], counts["unsupported"]
        link = f"[{entry.version}]({folder.relative_to(REGISTER)})"
        run = f"{record['size']}, few shapes" if record.get("few_shapes") else record["size"]
        yield [entry.title, link, run, *(f"{n:,}" for n in numbers), entry.level]


if __name__ == "__main__":
    README.write_text(PLACE.sub(lambda found: found[1] + table() + found[2], README.read_text()))
