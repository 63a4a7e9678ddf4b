"""ONNX Runtime as a backend: a graph becomes one ONNX model, which every context of its structure runs."""

from __future__ import annotations
