"""An entry of the register: a folder with a certificate, how it was made, its known failures, and its environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from backbay import BackbayError
from backbay.internals import read_regular
from backbay_conformance.report.certificate import TITLE
from backbay_conformance.report.digests import digest
from backbay_conformance.runner.verification import LARGEST

ENTRY, CERTIFICATE, LOCK, KNOWN = "entry.json", "certificate.json", "lock.txt", "known-failures.txt"
BADGE, HUNT, VERIFICATION = "badge.svg", "hunt.json", "verification.json"
OTHER_SEEDS = ("certificate-seed-1.json", "certificate-seed-2.json")
"""The certificates of the further seeds of a proven engine."""
BOUND = (CERTIFICATE, KNOWN, LOCK, HUNT, VERIFICATION, *OTHER_SEEDS)
"""The files whose digests an entry has."""
FILES = {ENTRY, BADGE, *BOUND}
"""All files that an entry may have."""
SEEDS = (0, 1, 2)
"""The seeds of each version of the suite: the first for every entry, all of them for a proven engine."""


@dataclass(frozen=True)
class SuiteIdentity:
    """What decides which calls are drawn and how they are judged; results of the same `frozen` compare."""

    version: str
    digest: str
    seed: int
    hypothesis: str

    @property
    def frozen(self) -> str:
        return digest([self.version, self.digest, str(self.seed), self.hypothesis])


@dataclass(frozen=True)
class Entry:
    """What a folder says beside its certificate.

    distribution  the line of the lock file that has the engine's code, such as onnxruntime==1.32.0
    command       the one command that made the certificate
    machine       processor and system
    """

    engine: str
    title: str
    version: str
    distribution: str
    flags: list[str]
    device: str
    command: str
    machine: str
    date: str
    level: str
    suite: SuiteIdentity
    frozen: str
    note: str = ""
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Entry:
        """The entry of a folder; an error says what is missing."""
        data = read_json(folder / ENTRY)
        named = {each.name for each in fields(cls)}
        absent = sorted(named - {"note", "files"} - data.keys())
        if absent or data.keys() - named:
            wrong = ", ".join(absent) or ", ".join(sorted(data.keys() - named))
            raise BackbayError(f"{folder / ENTRY}: {'missing' if absent else 'unknown'}: {wrong}")
        try:
            return cls(**{**data, "suite": SuiteIdentity(**data["suite"])})
        except TypeError as error:
            raise BackbayError(f"{folder / ENTRY} is damaged: {error}") from None

    def write(self, folder: Path) -> None:
        (folder / ENTRY).write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """The object of a JSON file, of no matter which suite."""
    try:
        data = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise BackbayError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BackbayError(f"{path} is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise BackbayError(f"{path} is no object of JSON")
    return data


def read_record(path: Path) -> dict[str, Any]:
    """The certificate of a file, or the record of a run that earned none."""
    data = read_json(path)
    if data.get("certificate") != TITLE or not isinstance(data.get("ops"), list):
        raise BackbayError(f"{path} is no certificate, as `backbay conform NAME --certify` writes them")
    return data


def file_digests(folder: Path) -> dict[str, str]:
    found = {name: folder / name for name in BOUND}
    return {name: sha256(path.read_bytes()).hexdigest() for name, path in found.items() if path.is_file()}


def strange_files(folder: Path) -> list[str]:
    """What no entry has: files of other names, links, and folders, all of which a site would publish."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.name not in FILES or path.is_symlink() or not path.is_file()
    )


def locked(folder: Path) -> dict[str, str]:
    """The version of each distribution in the lock file, by its lower-case name; empty without one."""
    path = folder / LOCK
    lines = read_regular(path, LARGEST).decode().splitlines() if path.is_file() else []
    pairs = (line.split("#")[0].strip().partition("==") for line in lines)
    return {normal(name): version for name, equals, version in pairs if equals}


def normal(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def usual_command(said: Mapping[str, Any]) -> str:
    """The command that makes such a certificate."""
    words = ["backbay conform", said["backend"]]
    words += [f"--option {name}={value}" for name, value in said["opening"].get("options", {}).items()]
    words += [f"--device {said['opening']['device']}"] if said["opening"].get("device") else []
    words += [f"--size {said['size']}"] if said["size"] != "default" else []
    words += ["--few-shapes"] if said.get("few_shapes") else []
    words += [f"--seed {said['seed']}"] if said["seed"] else []
    known = bool(said["counts"].get("known"))
    return " ".join([*words, f"--known {KNOWN}" if known else "", ending(said)]).replace("  ", " ")


def ending(said: Mapping[str, Any]) -> str:
    return "--json report.json" if "failures" in said else "--certify proof"
