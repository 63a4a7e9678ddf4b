"""Anthropic's API: messages, and the count of their tokens."""

from __future__ import annotations

from .messages import ENDPOINTS

__all__ = ["ENDPOINTS"]
