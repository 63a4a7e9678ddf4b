"""The lines of `backbay doctor` about ggml."""

from __future__ import annotations

import pytest

from backbay_ggml import Ggml, doctor
from backbay_ggml.devices.device import Device, find_devices
from backbay_ggml.library.library import load_library


def test_no_line_is_empty() -> None:
    told = Ggml.diagnose()
    assert all(told.values())
    assert told["devices"].startswith("CPU:0 ")


def test_a_library_without_code_for_gpus_tells_how_to_build_one(monkeypatch) -> None:
    library = load_library()
    if len(find_devices(library, ())) > 1:
        pytest.skip("this library has found a GPU")
    monkeypatch.setattr(doctor, "NOT_GPUS", ("CPU", "RPC", "BLAS", "CUDA", "Vulkan", "Metal"))
    assert "-DGGML_CUDA=ON" in Ggml.diagnose()["gpus"]
    monkeypatch.setattr(doctor, "NOT_GPUS", ("RPC",))  # as if the CPU's code were a GPU's that finds none
    assert "driver" in Ggml.diagnose()["gpus"]


def test_gpus_that_are_used_are_listed() -> None:
    library = load_library()
    devices = [Device(library, "CPU:0", library.cpu), Device(library, "CUDA:0", library.cpu)]
    devices[1].is_cpu = False
    assert doctor._gpus(library, devices) == "CUDA:0"


@pytest.mark.parametrize(
    ("mode", "says"), [("always madvise [never]", "off in"), ("always [madvise] never", "used")]
)
def test_huge_pages_are_reported(mode, says, tmp_path, monkeypatch) -> None:
    path = tmp_path / "enabled"
    path.write_text(mode)
    monkeypatch.setattr(doctor, "HUGE_PAGES", path)
    assert doctor._huge_pages().startswith(says)
