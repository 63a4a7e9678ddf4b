"""Sessions of ONNX Runtime: their options, and how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backbay.internals import Bytes, usable_cores

from .device import Device
from .device_trial import lacks_float16
from .left_to_cpu import left_to_cpu
from .runtime import runtime, translated
from .thread_pool import POOL

# MatmulTransposeFusion merges a transpose before a cast wrongly: it reads outside of memory and the process ends.
# Pad_Fusion merges a pad into a pool, which then divides by another count, or refuses it.
DISABLED = ["MatmulTransposeFusion", "Pad_Fusion"]


def session_options(num_threads: int | None, *, shared: bool, native: Path | None = None) -> Any:
    """The options of every session; `native` is a file of custom ops."""
    ort = runtime()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.enable_cpu_mem_arena = False  # it takes twice the memory of a step, and makes none faster
    # A written state is bound as input and output. ONNX Runtime does not know it: nodes must run in our order.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    POOL.configure(options, num_threads or usable_cores(), shared=shared)
    options.add_session_config_entry("session.use_external_initializer_file_buffers_directly", "1")
    if native is not None:
        with translated("loading native code"):
            options.register_custom_ops_library(str(native))
    return options


def create_session(
    model: Any, parts: Sequence[tuple[str, Bytes]], options: Any, device: Device, limit: int | None
) -> Any:
    """A session that reads `parts`, packed weights by file name, where they lie."""
    with translated("creating a session"), device.alone():
        if parts:
            names, data = [name for name, _ in parts], [part for _, part in parts]
            options.add_external_initializers_from_files_in_memory(
                names, data, [part.nbytes for part in data]
            )
        options.use_deterministic_compute = not device.is_host  # else CUDA adds up long rows in any order
        setting = device.provider.cpu_nodes_setting  # only a provider with it is worth a trial of float16
        if setting and (left := left_to_cpu(model, device.provider, float16=not lacks_float16(device))):
            options.add_session_config_entry(setting, "\n".join(left))
        session = runtime().InferenceSession(
            model.SerializeToString(),
            options,
            providers=device.session_providers(limit),
            enable_fallback=0,  # it would try the same again, after a banner on standard output
            disabled_optimizers=DISABLED,
        )
    device.check(session)
    return session
