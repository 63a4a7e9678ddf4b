"""The register as data for its site: entries, lines, speeds, hunts, refusals, faults, and what changed between versions."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from backbay_conformance.report.known_failures import KnownFailure, read_known_failures
from backbay_register.check import is_current, matches
from backbay_register.comparison import compare
from backbay_register.entry import CERTIFICATE, ENTRY, HUNT, KNOWN, LOCK, Entry, read_json, read_record
from backbay_register.levels import LEVELS, waivers

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "lab" / "tools"))
import found  # noqa: E402

REGISTER = ROOT / "register"
FLUSHED = "subnormals as zeros"
PROJECTS = {
    "cpu_ref": ["NumPy"],
    "ggml": ["ggml", "ggml on Vulkan", "ggml-python"],
    "jax": ["JAX"],
    "mlx": ["MLX"],
    "nxrt-ep-cpu": ["nxrt-ep-cpu"],
    "onnxruntime": ["ONNX Runtime"],
    "onnxruntime-each": ["ONNX Runtime"],
    "onnxruntime-ggml": ["onnxruntime-ggml"],
    "onnxruntime-openvino": ["ONNX Runtime on OpenVINO"],
    "onnxruntime-webgpu": ["ONNX Runtime on WebGPU"],
    "tinygrad": ["tinygrad"],
    "torch": ["PyTorch"],
    "torch-inductor": ["PyTorch"],
    "xla-cpu-pjrt": ["xla-cpu-pjrt"],
}
"""The projects in lab/found whose faults are those of an engine, by its folder."""
Json = dict[str, Any]
Way = tuple[str, ...]


def register_data(register: Path = REGISTER) -> Json:
    folders = folders_of_entries(register)
    entries = [_entry(folder, register) for folder in folders]
    ways = [_way(Entry.read(folder)) for folder in folders]
    for n, (older, newer) in enumerate(pairwise(ways)):
        entries[n]["newest"] = older != newer
    entries[-1]["newest"] = True
    return {
        "levels": LEVELS,
        "entries": entries,
        "changes": _changes(folders, ways),
        "faults": [_fault(each) for each in found.findings()],
        "fault_versions": _fault_versions(),
    }


def folders_of_entries(register: Path) -> list[Path]:
    """By title; versions judged in one way follow each other."""
    return sorted((path.parent for path in register.glob(f"*/*/{ENTRY}")), key=_order)


def numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)]


def _order(folder: Path) -> tuple[str, Way, list[int]]:
    entry = Entry.read(folder)
    return entry.title.lower(), _way(entry), numbers(folder.name)


def _way(entry: Entry) -> Way:
    """The engine and its options: versions judged in one way follow each other. A library may lie anywhere."""
    return entry.engine, *(flag for flag in entry.flags if not flag.startswith("library="))


def _entry(folder: Path, register: Path) -> Json:
    entry, said = Entry.read(folder), read_record(folder / CERTIFICATE)
    files = [name for name in (CERTIFICATE, ENTRY, KNOWN, LOCK, HUNT) if (folder / name).is_file()]
    flushed = sorted({line["name"] for line in said["ops"] if _flushes(line)})
    own = asdict(entry)
    return {
        **{key: own[key] for key in ("engine", "title", "version", "flags", "device", "command", "machine")},
        **{key: own[key] for key in ("date", "level", "note", "distribution", "frozen")},
        "id": f"{entry.engine}/{entry.version}",
        "folder": folder.relative_to(register).as_posix(),
        "files": files,
        "suite": said["suite"],
        "digest": said.get("digests", {}).get("suite", ""),
        "current": is_current(said),
        "seed": said["seed"],
        "size": said["size"],
        "counts": said["counts"],
        "plugin": said["facts"]["backend"],
        "deterministic": said["facts"].get("deterministic"),
        "flushed": flushed,
        "computed": sum(bool(line["passed"] and line["precisions"]) for line in said["ops"]),
        "waivers": list(waivers(said)),
        "avoidances": said["facts"].get("avoidances", {}),
        "refusals": (said.get("refusals") or {}).get("calls", []),
        "lines": [_line(line) for line in said["ops"]],
        "speeds": said.get("speeds", []),
        "failures": _failures(said, read_known_failures(folder / KNOWN)),
        "worst": read_json(folder / HUNT)["worst"] if HUNT in files else [],
        "hunted": read_json(folder / HUNT)["hunt"] if HUNT in files else "",
        "projects": PROJECTS.get(entry.engine, []),
        "newest": False,
    }


def _failures(said: Json, known: list[KnownFailure]) -> list[Json]:
    """The failures, each with the reason that the file of known failures gives, if it does."""
    return [
        {
            **each,
            **next(({"reason": line.reason, "link": line.link} for line in known if matches(line, each)), {}),
        }
        for each in said.get("failures", [])
    ]


def _flushes(line: Json) -> bool:
    return bool(line["passed"]) and any(FLUSHED in each for each in line["precisions"])


def _line(line: Json) -> list[Any]:
    """A line as a list, since there are hundreds for each engine."""
    worst = float(f"{line['worst']:.3g}")
    key = [line["profile"], line["name"], line["dtype"], line["state"]]
    return [
        *key,
        line["passed"],
        line.get("failed", 0),
        line.get("unsupported", 0),
        worst,
        line["precisions"],
    ]


def _changes(folders: list[Path], ways: list[Way]) -> list[Json]:
    """What changed between two versions of an engine, one after the other."""
    records = [read_record(folder / CERTIFICATE) for folder in folders]
    ids = ["/".join(folder.parts[-2:]) for folder in folders]
    return [
        {"before": ids[a], "after": ids[b], **compare(records[a], records[b]).as_dict()}
        for a, b in pairwise(range(len(folders)))
        if ways[a] == ways[b]
    ]


def _fault(finding: found.Finding) -> Json:
    fields = {key: finding[key] for key in found.FIELDS}
    return {
        "id": finding.path.stem,
        "fault": finding.fault,
        **fields,
        "report": f"lab/found/reports/{finding.path.stem}.md"
        if finding["thread"] == found.UNREPORTED
        else "",
        "script": finding.path.read_text(),
    }


def _fault_versions() -> list[Json]:
    """For each project and version: the faults that are new in it, and those that are mended in it.

    Each stands beside the version that its script was tried on before.
    """
    rows: dict[tuple[str, str], Json] = {}
    for each in found.findings():
        shown = dict.fromkeys(each.versions("shown"), True)
        tried = {**shown, **dict.fromkeys(each.versions("right"), False)}
        for before, after in pairwise(sorted(tried, key=numbers)):
            if tried[before] != tried[after]:
                empty: Json = {"project": each["project"], "version": after, "new": [], "mended": []}
                row = rows.setdefault((each["project"], after), empty)
                row["new" if tried[after] else "mended"].append({"id": each.path.stem, "before": before})
    return sorted(
        rows.values(), key=lambda row: (row["project"].lower(), [-n for n in numbers(row["version"])])
    )
