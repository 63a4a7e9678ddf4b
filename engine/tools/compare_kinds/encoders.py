"""Encoders, and decoders that give vectors."""

from __future__ import annotations

from kind import Kind

KINDS: dict[str, Kind] = {}
