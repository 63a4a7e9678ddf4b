"""mkdocs' hooks: README becomes the site's landing page, the register a part of the site, and links out of `docs` lead to
the repository, if it has an address.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify
from register_site import site_files
from versions import source

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REGISTER = "register"  # its own pages have no frame of mkdocs around them
PAGES = {"index.md": ROOT / "README.md", f"{REGISTER}/about.md": ROOT / REGISTER / "README.md"}
"""Pages of the site whose text lies outside of `docs`."""
OPEN_REGISTER = "\n[Open the register](index.html){ .md-button }\n"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")

HEADINGS: Counter[str] = Counter()  # those of the page at hand


def on_config(config: Any) -> None:
    config.mdx_configs["toc"]["slugify"] = _anchor


def _anchor(heading: str, separator: str) -> str:
    """The anchor that GitHub gives a heading: a repeated one gets a number."""
    slug = slugify(case="lower")(heading, separator)
    HEADINGS[slug] += 1
    return f"{slug}-{HEADINGS[slug] - 1}" if HEADINGS[slug] > 1 else slug


def on_files(files: Files, config: Any) -> Files:
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=path.read_text()))
    for name, content in site_files().items():
        files.append(File.generated(config, f"{REGISTER}/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    HEADINGS.clear()
    at = DOCS / page.file.src_uri
    origin = PAGES.get(page.file.src_uri, at).parent
    if origin == ROOT / REGISTER:
        title, _, text = markdown.partition("\n")
        markdown = title + "\n" + OPEN_REGISTER + text
    return LINK.sub(lambda found: _link(*found.groups(default=""), origin=origin, at=at), markdown)


def _link(text: str, target: str, anchor: str, *, origin: Path, at: Path) -> str:
    """The link for a page of the site; a text without a link if it leads out of it, and the repository has no address."""
    path = Path(os.path.normpath(origin / target))
    if not path.exists():  # an address, or code that looks like a link
        return f"[{text}]({target}{anchor})"
    path = next((DOCS / page for page, own in PAGES.items() if own == path), path)
    if path.is_relative_to(DOCS):
        return f"[{text}]({os.path.relpath(path, at.parent)}{anchor})"
    address = source()
    return f"[{text}]({address}/blob/main/{path.relative_to(ROOT)}{anchor})" if address else text
