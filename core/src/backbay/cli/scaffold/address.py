"""The address that a new repository's CI clones backbay from."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import unquote, urlsplit

HTTPS = re.compile(r"https://(?:[^/@\s]*@)?([\w.-]+(?::\d+)?)/([\w./~-]+)")
SSH = re.compile(r"(?:ssh://)?git@([\w.-]+)[:/]([\w./~-]+)")


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
