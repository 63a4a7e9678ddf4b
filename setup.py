"""Lets `pip install .` install the packages of the workspace, which are on no index."""

from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
PACKAGES = {
    "backbay": "core",
    "backbay-cpu-ref": "plugins/cpu_ref",
    "backbay-native": "plugins/native",
    "backbay-ggml-lib": "plugins/ggml/lib",
    "backbay-ggml": "plugins/ggml",
    "backbay-onnx[cpu]": "plugins/onnx",
    "backbay-conformance[pytest]": "conformance",
    "backbay-engine": "apps/engine",
    "backbay-server": "apps/server",
}

setup(
    name="backbay-workspace",
    version="0",
    packages=[],
    py_modules=[],
    install_requires=[f"{name} @ {(ROOT / folder).as_uri()}" for name, folder in PACKAGES.items()],
)
