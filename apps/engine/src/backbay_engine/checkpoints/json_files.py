"""JSON files of a model's folder, of bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backbay import ModelFileError
from backbay.internals import open_regular, read_regular

LARGEST = 1 << 28  # bytes; the largest tokenizer.json has some 35 MB


def read_object(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is not required and not there."""
    if not required and not path.exists():
        return {}
    found = parse_json(path, read_bytes(path))
    if not isinstance(found, dict):
        raise ModelFileError(path, None, "a JSON object", f"a JSON {type(found).__name__}")
    return found


def read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST)
    except OSError as error:
        raise ModelFileError(path, None, "a readable file", error.strerror or error) from error


def first_bytes(path: Path, most: int) -> bytes:
    """The first bytes of a file, as many as there are."""
    with open_regular(path) as file:
        data: bytes = file.read(most)
    return data


def parse_json(path: Path, data: bytes, offset: int = 0) -> Any:
    """The JSON value in bytes that begin at an offset of a file."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ModelFileError(path, offset, "JSON of few levels", "too many") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        at = getattr(error, "pos", getattr(error, "start", 0))
        raise ModelFileError(path, offset + at, "JSON in UTF-8", error) from error
