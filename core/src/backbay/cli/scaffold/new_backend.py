"""A repository for a new backend, with a few kernels that already keep the contract.

The repository holds the plugin, its tests, and CI for GitHub and GitLab with the conformance suite. `backbay conform
NAME --next` then says which kernel to write next.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from backbay.cli.output import folder_to_write, note, say
from backbay.data.cache_folder import write_text
from backbay.discovery import backends, version_of
from backbay.errors import BackbayError
from backbay.types.contract_version import CONTRACT_VERSION

TEMPLATES = Path(__file__).parent / "templates"
KINDS = {
    "kernels": "a function for each op over NumPy arrays, which core runs in order; the default",
    "graph": "whole graphs as pure functions, over the arrays of an engine: PyTorch, JAX, CuPy",
}
HIDDEN = ("gitignore", "gitlab-ci.yml", "github")  # names that begin with a dot in the repository
HTTPS = re.compile(r"https://(?:[^/@\s]*@)?([\w.-]+(?::\d+)?)/([\w./~-]+)")
SSH = re.compile(r"(?:ssh://)?git@([\w.-]+)[:/]([\w./~-]+)")
NO_SOURCE = (
    "\nCI needs the address of backbay: set the repository variable BACKBAY_SOURCE, or name it with --source"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", type=_name, help="the name that opens the backend, such as jax")
    kinds = parser.add_mutually_exclusive_group()
    for kind, what in KINDS.items():
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=what)
    parser.set_defaults(kind="kernels")
    into = "the new repository; by default backbay-NAME"
    parser.add_argument("--into", type=folder_to_write, metavar="FOLDER", help=into)
    clone = (
        "where CI clones backbay; by default the remote `origin` of the clone that backbay is installed from"
    )
    parser.add_argument("--source", type=_source, metavar="URL", help=clone)


def run(args: Namespace) -> int:
    taken = backends().get(args.name)
    if taken is not None:
        what = f"the name of a backend of {version_of(taken)}, which is installed"
        raise BackbayError(f"{args.name!r} is {what}; take another name")
    folder = Path(args.into or f"backbay-{args.name}")
    if folder.exists() and any(folder.iterdir()):
        raise BackbayError(f"{folder} is not empty; name another folder with --into")
    source = args.source or clone_address() or ""
    for path, text in repository_files(args.name, args.kind, source).items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_text(target, text)
    say(f"written: {folder}\n")
    say(f"  cd {folder}")
    say("  pip install -e '.[test]'    # in an environment with backbay and backbay-conformance")
    say("  pytest")
    say(f"  backbay conform {args.name} --size smoke")
    say(f"  backbay conform {args.name} --next")
    note(f"\nCI clones backbay from {source}" if source else NO_SOURCE)
    return 0


def repository_files(name: str, kind: str, source: str = "") -> dict[str, str]:
    """The files of a new repository, by their paths; `source` is the address of backbay, if there is one."""
    written = {}
    for part in (TEMPLATES / "both", TEMPLATES / kind):
        for path in sorted(part.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                first, *others = path.relative_to(part).parts
                first = f"src/backbay_{name}" if first == "package" else first
                place = "/".join([f".{first}" if first in HIDDEN else first, *others])
                written[place] = _filled(path.read_text("utf-8"), name, source)
    return written


def _filled(text: str, name: str, source: str) -> str:
    kind = "".join(part.capitalize() for part in name.split("_")) + "Backend"
    replaced = {
        "mybackend": name,
        "MyBackend": kind,
        "~=1.0": f"~={CONTRACT_VERSION}",
        "CONTRACT": str(CONTRACT_VERSION),
        "[backbay](ADDRESS)": f"[backbay]({source})" if source else "backbay",
        "ADDRESS": source,
    }
    return re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found[0]], text)


def _name(text: str) -> str:
    if not re.fullmatch("[a-z][a-z0-9_]*", text):
        raise ArgumentTypeError(f"must be small letters, digits and _, such as my_engine, got {text!r}")
    return text


def _source(text: str) -> str:
    address = https_address(text)
    if address is None:
        raise ArgumentTypeError(f"must be an address such as https://example.org/backbay, got {text!r}")
    return address


def https_address(remote: str) -> str | None:
    """The https address of a repository, without a user's name and password; None for other kinds of remotes."""
    found = HTTPS.fullmatch(remote) or SSH.fullmatch(remote)
    return found and f"https://{found[1]}/{found[2]}"


def clone_address() -> str | None:
    """The address of the clone that backbay is installed from; None without a clone, or without a remote `origin`."""
    try:
        installed = json.loads(distribution("backbay").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    folder = urlsplit(installed.get("url", ""))
    if folder.scheme != "file":
        return None
    core = unquote(folder.path)
    in_a_clone = _git(core, "rev-parse", "--show-prefix") == "core/"
    return https_address(_git(core, "remote", "get-url", "origin")) if in_a_clone else None


def _git(folder: str, *arguments: str) -> str:
    """What git prints; nothing if it fails, or is not installed."""
    git = shutil.which("git")
    if git is None:
        return ""
    ended = subprocess.run([git, "-C", folder, *arguments], check=False, capture_output=True, text=True)
    return ended.stdout.strip() if ended.returncode == 0 else ""
