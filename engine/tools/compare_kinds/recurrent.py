"""Recurrent and hybrid models, and encoders with decoders."""

from __future__ import annotations

from kind import Kind

KINDS: dict[str, Kind] = {}
