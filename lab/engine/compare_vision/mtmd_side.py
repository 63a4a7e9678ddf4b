"""The rows that llama.cpp's mtmd makes of pictures or sounds, in a process of its own: a model that it cannot run may end the process.

    python mtmd_side.py MODEL PROJECTOR ROWS.npz PICTURES.npz

Needs llama-cpp-python. PICTURES holds arrays (height, width, 3) of a picture, or (samples,) of a sound of 16 kHz; ROWS gets
(rows, features) of each, tiles in their order.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator

import llama_cpp as lib
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from numpy.typing import NDArray


class Mtmd:
    """A text model and its projector."""

    def __init__(self, model: str, projector: str) -> None:
        self.said: list[str] = []
        self._log = lib.llama_log_callback(lambda level, text, data: self.said.append(text.decode().strip()))
        for set_log in (lib.llama_log_set, mtmd.mtmd_log_set, mtmd.mtmd_helper_log_set):
            set_log(self._log, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings, params.warmup = False, 1, False, False
        params.flash_attn_type = 0  # ours is exact, too
        self.context = mtmd.mtmd_init_from_file(projector.encode(), self.model, params)
        if self.context is None:
            raise SystemExit(next((text for text in self.said if "rror" in text or "unable" in text), "no"))
        self.width = lib.llama_model_n_embd_inp(self.model)

    def rows(self, given: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        given = np.array(given)
        if given.ndim == 1:
            samples = (ctypes.c_float * given.size).from_buffer(given)
            bitmap = mtmd.mtmd_bitmap_init_from_audio(given.size, samples)
        else:
            data = (ctypes.c_uint8 * given.size).from_buffer(given)
            bitmap = mtmd.mtmd_bitmap_init(given.shape[1], given.shape[0], data)
        chunks, text = mtmd.mtmd_input_chunks_init(), mtmd.mtmd_input_text()
        marker = mtmd.mtmd_default_marker()
        text.text, text.text_len, text.add_special, text.parse_special = marker, len(marker), False, True
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(text), bitmaps, 1):
            raise SystemExit("mtmd cannot tokenize the picture or sound")
        return np.concatenate([*self._encoded(chunks)])

    def _encoded(self, chunks: int) -> Iterator[NDArray[np.float32]]:
        for n in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, n)
            if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
                continue
            if mtmd.mtmd_encode_chunk(self.context, chunk):
                raise SystemExit("mtmd cannot encode the picture or sound")
            shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), self.width
            yield np.array(np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self.context), shape))


def main() -> None:
    model, projector, target, pictures = sys.argv[1:]
    side = Mtmd(model, projector)
    with np.load(pictures) as given:
        np.savez(target, **{name: side.rows(given[name]) for name in given})


if __name__ == "__main__":
    main()
