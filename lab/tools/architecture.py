"""Draws docs/architecture.svg and lists all rooms in docs/reference/rooms.md, from the code. `make docs` runs it."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs" / "reference" / "rooms.md", ROOT / "docs" / "architecture.svg"
HEAD = "# The rooms\n\nEach folder of a package, and what is in it, from above to below: a room imports only rooms below it.\n\n"
PANELS = {  # title and folder, as they stand in the picture: the lowest row last
    "server": "apps/server/src/backbay_server",
    "engine": "apps/engine/src/backbay_engine",
    "conformance": "conformance/src/backbay_conformance",
    "plugins/ggml": "plugins/ggml/src/backbay_ggml",
    "plugins/onnx": "plugins/onnx/src/backbay_onnx",
    "plugins/cpu_ref": "plugins/cpu_ref/src/backbay_cpu_ref",
    "core": "core/src/backbay",
}
LIBRARY = "plugins/native"
FLAT_PACKAGES = {  # title and folder of those without rooms that stand in layers
    "apps/ray": "apps/ray/src/backbay_ray",
    "conformance/src/backbay_register": "conformance/src/backbay_register",
    "conformance/selftest": "conformance/selftest/src/backbay_selftest",
    "plugins/torch": "plugins/torch/src/backbay_torch",
    "plugins/jax": "plugins/jax/src/backbay_jax",
    LIBRARY: "plugins/native/src/backbay_native",
}
LAB = "| `lab` | What proves and measures, beside the tests: [its folders](../../lab/README.md). |"
USERS = "plugins/ggml", "plugins/onnx"  # of the library, which lies below their panels: these adjoin
ROOM_WIDTH, GAP, MARGIN, TITLE = 178, 10, 20, 34
TALL, LOW = 86, 44  # heights of a room in a narrow panel, and in a wide one
LETTER = 6.2  # the width of a letter of a purpose


@dataclass
class Room:
    """A folder of a package: what it is for, and which other rooms of the package it imports."""

    name: str
    purpose: str
    imports: set[str] = field(default_factory=set)


@cache
def rooms(folder: Path) -> dict[str, Room]:
    """The rooms of a package by name."""
    package, found = folder.name, {}
    for inside in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        found[inside.name] = Room(inside.name, purpose(inside))
    for room in found.values():
        for path in (folder / room.name).rglob("*.py"):
            here = [package, *path.relative_to(folder).with_suffix("").parts]
            for module in _imported(ast.parse(path.read_text()), here):
                parts = module.split(".")
                if parts[0] == package and len(parts) > 1 and parts[1] in found and parts[1] != room.name:
                    room.imports.add(parts[1])
    return found


def purpose(folder: Path) -> str:
    """The first sentences of a package's docstring."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    return text.partition("\n\n")[0].replace("\n", " ")


def _imported(tree: ast.Module, here: list[str]) -> set[str]:
    """The modules that a module imports when it runs, by their full names."""
    modules = set()
    for node in _run_statements(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            modules |= {name, *(f"{name}.{alias.name}" for alias in node.names)}
    return modules


def _run_statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements but those that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        ):
            continue
        yield child
        yield from _run_statements(child)


def levels(found: dict[str, Room]) -> list[list[Room]]:
    """Rooms in rows: each imports rooms of lower rows only; the lowest row last."""
    depth: dict[str, int] = {}

    def depth_of(name: str, above: tuple[str, ...] = ()) -> int:
        if name in above:
            raise SystemExit(f"an import circle: {' -> '.join((*above, name))}")
        if name not in depth:
            depth[name] = 1 + max((depth_of(n, (*above, name)) for n in found[name].imports), default=-1)
        return depth[name]

    rows: dict[int, list[Room]] = {}
    for name, room in found.items():
        rows.setdefault(depth_of(name), []).append(room)
    return [rows[level] for level in sorted(rows, reverse=True)]


def table() -> str:
    """All rooms of all packages, as Markdown."""
    parts = []
    for title, folder in PANELS.items():
        rows = [
            f"| `{room.name}/` | {room.purpose} |" for row in levels(rooms(ROOT / folder)) for room in row
        ]
        parts.append(f"## {title}\n\n| room | what is in it |\n|---|---|\n" + "\n".join(rows))
    flat = [f"| `{title}` | {purpose(ROOT / folder)} |" for title, folder in FLAT_PACKAGES.items()]
    parts.append("## without rooms\n\n| folder | what is in it |\n|---|---|\n" + "\n".join([*flat, LAB]))
    return "\n\n".join(parts)


def picture() -> str:
    """The picture: a panel for each package, its rooms in rows, and arrows from package to package."""
    panels = {title: levels(rooms(ROOT / folder)) for title, folder in PANELS.items()}
    core = panels.pop("core")
    drawn, places, x = [], {}, MARGIN
    for title, found in panels.items():
        rows = [row[i : i + 2] for row in found for i in range(0, len(row), 2)]
        width = max(map(len, rows)) * (ROOM_WIDTH + GAP) + GAP
        height, body = _panel(title, rows, width, TALL)
        drawn.append((x, height, body))
        places[title] = x, width
        x += width + MARGIN
    tallest = max(height for _, height, _ in drawn)
    core_height, core_body = _panel("core", core, x - 2 * MARGIN, LOW)
    top = MARGIN + tallest + 50  # of the library
    bottom = top + TITLE + 50
    parts = [_moved(left, MARGIN + tallest - height, body) for left, height, body in drawn]
    for title, (left, width) in places.items():
        parts.append(_arrow(left + width / 2, MARGIN + tallest, top if title in USERS else bottom))
    (left, _), (last, width) = (places[title] for title in USERS)
    parts.append(_moved(left, top, _panel(LIBRARY, [], last + width - left, LOW)[1]))
    parts.append(_arrow((left + last + width) / 2, top + TITLE, bottom))
    parts.append(_moved(MARGIN, bottom, core_body))
    return _page(x, bottom + core_height + MARGIN, parts)


def _panel(title: str, rows: list[list[Room]], width: int, room_height: int) -> tuple[int, str]:
    """The height of a package's panel, and the panel. The rooms of a row share its width."""
    height = TITLE + len(rows) * (room_height + GAP)
    parts = [
        f'<rect width="{width}" height="{height}" rx="10" class="panel"/>',
        f'<text x="{GAP + 4}" y="23" class="title">{title}</text>',
    ]
    for level, row in enumerate(rows):
        share = (width - GAP) / len(row)
        for place, room in enumerate(row):
            box = _room(room, share - GAP, room_height)
            parts.append(_moved(GAP + place * share, TITLE + level * (room_height + GAP), box))
    return height, "".join(parts)


def _room(room: Room, width: float, height: int) -> str:
    sentence = room.purpose.partition(". ")[0].rstrip(".")
    lines = wrap(sentence, int((width - 20) / LETTER), max_lines=(height - 26) // 15, placeholder=" ...")
    text = "".join(
        f'<text x="8" y="{34 + 15 * i}" class="purpose">{escape(line)}</text>' for i, line in enumerate(lines)
    )
    box = f'<rect width="{width:g}" height="{height}" rx="6" class="room"/>'
    return f'{box}<text x="8" y="18" class="name">{room.name}</text>{text}'


def _arrow(x: float, start: float, end: float) -> str:
    return f'<path d="M{x:g} {start:g} V{end - 3:g}" class="arrow"/>'


def _moved(x: float, y: float, body: str) -> str:
    return f'<g transform="translate({x:g},{y:g})">{body}</g>'


def _page(width: int, height: int, parts: list[str]) -> str:
    style = (
        "text{font-family:sans-serif;fill:#0f172a}.title{font-size:15px;font-weight:bold;fill:#1d4ed8}"
        ".name{font-size:13px;font-weight:bold}.purpose{font-size:11px;fill:#334155}"
        ".panel{fill:#eff6ff;stroke:#1d4ed8}.room{fill:#fff;stroke:#94a3b8}.arrow{stroke:#475569;marker-end:url(#tip)}"
    )
    tip = (
        '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L10 5 L0 10 z" fill="#475569"/></marker>'
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">'
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return "\n".join([head, f"<defs>{tip}<style>{style}</style></defs>", background, *parts, "</svg>\n"])


def page() -> str:
    return f"{HEAD}{table()}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(PAGE.read_text() != page() or PICTURE.read_text() != picture())
    PAGE.write_text(page())
    PICTURE.write_text(picture())
