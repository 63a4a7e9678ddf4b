"""The server over replicas of its models on several machines, which Ray Serve runs; docs/scale.md shows how."""

from __future__ import annotations

from .deployments import app

__all__ = ["app"]
