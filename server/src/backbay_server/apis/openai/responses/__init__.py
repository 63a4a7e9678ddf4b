"""Responses without state: a conversation in items, and its answer in typed events."""

from __future__ import annotations

from .endpoint import ENDPOINTS

__all__ = ["ENDPOINTS"]
