"""Snapshots: conversations in files, which any backend can go on with."""

from .snapshot import Snapshot

__all__ = ["Snapshot"]
