"""The encoding of pictures, beside llama.cpp's mtmd: the same files, the same threads, encoders of random weights.

    python lab/bench/engine_images.py --kind siglip --sides llama.cpp ggml onnx

`encode` is the time of one picture, `processor` the time that all threads work on it, which a busy machine changes less.
`again` is a second question about the picture, which encodes nothing. `beside` is the median gap between tokens of a text
request while a picture is encoded, over the median gap alone; `longest` is the longest gap. Rows of one picture are
compared with those of the last side: mtmd moves the class token of clip behind the patches, so its rows are others.

The encoders are those of Gemma 3 (siglip: 27 blocks of 1152, 896 x 896) and of llava 1.5 (clip: 23 blocks of 1024,
336 x 336), in f16; `--blocks` takes fewer blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from sides import Side, against, serve, side_arguments, table, take_all_turns, write_json

LLAMA_CPP, PROCESSOR = "llama.cpp", "processor"
WIDTH, HIDDEN, LAYERS, HEADS, CONTEXT = 1024, 2048, 8, 8, 2048
MARKS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<image>")
BOS, EOS = 257, 258
ALONE = 100  # tokens, before the encoding and after it
Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Kind:
    """An encoder: its sizes, and the architecture of the text model that it serves."""

    projector: str
    text: str
    side: int
    width: int
    hidden: int
    blocks: int
    heads: int
    patch: int = 14


KINDS = {
    "siglip": Kind("gemma3", "gemma3", 896, 1152, 4304, 27, 16),
    "clip": Kind("mlp", "llama", 336, 1024, 4096, 23, 16),
}


def main() -> None:
    parser = side_arguments(__doc__, rounds=3)
    parser.add_argument("--kind", choices=KINDS, default="siglip")
    parser.add_argument("--blocks", type=int, help="blocks of the encoder; by default all")
    parser.add_argument("--sides", nargs="+", help=f"{LLAMA_CPP}, and names of backends")
    parser.add_argument("--folder", type=Path, help="a folder to keep the files in")
    args = parser.parse_args()
    args.sides = args.sides or [*([LLAMA_CPP] if importlib.util.find_spec("llama_cpp") else []), "ggml"]
    if args.side:
        be_side(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        args.folder = args.folder or Path(folder)
        args.folder.mkdir(parents=True, exist_ok=True)
        write_files(args)
        write_json(args.json, compare(args))


def compare(args: argparse.Namespace) -> dict[str, Any]:
    own = [f"--{name}={getattr(args, name)}" for name in ("kind", "threads", "folder")]
    own += [] if args.blocks is None else [f"--blocks={args.blocks}"]
    sides = [Side(name, [__file__, *own, "--side", name]) for name in args.sides]
    results: dict[str, Any] = {"differences": differences(args, sides)}
    for request, parts in (("encode", ["encode", PROCESSOR]), ("again", ["again"])):
        asked = sides if request == "encode" else [side for side in sides if side.name != LLAMA_CPP]
        if asked:
            for part, answers in take_all_turns(asked, request, parts, args.rounds).items():
                results[part] = found = against(answers, asked[0].name)
                print(table(f"{args.kind}: {part}", "s", found), flush=True)
    for side in sides:
        if side.name != LLAMA_CPP:
            results[f"gaps of {side.name}"] = gaps = side.ask("gaps")
            print(
                f"{side.name}: gaps between tokens, median {gaps['alone']:.1f} ms alone, {gaps['beside']:.1f} ms beside "
                f"an encoding, {gaps['longest']:.0f} ms at most"
            )
        side.close()
    return results


def differences(args: argparse.Namespace, sides: list[Side]) -> dict[str, float]:
    """The normalised mean square errors of all sides' rows of one picture, against the last side's."""
    rows = []
    for side in sides:
        side.ask("rows")
        rows.append(np.load(args.folder / f"{side.name}.npy"))
    found = {
        side.name: float(np.sum((each - rows[-1]) ** 2) / np.sum(rows[-1] ** 2))
        for side, each in zip(sides[:-1], rows, strict=False)
    }
    for name, difference in found.items():
        print(f"{args.kind}: rows of {name} differ from those of {sides[-1].name} by {difference:.1e}")
    return found


def paths(args: argparse.Namespace) -> tuple[Path, Path]:
    blocks = KINDS[args.kind].blocks if args.blocks is None else args.blocks
    return args.folder / f"{args.kind}-text.gguf", args.folder / f"{args.kind}-{blocks}.gguf"


# -- the sides -------------------------------------------------------------------------------------------


def be_side(args: argparse.Namespace) -> None:
    made: Any = Mtmd(args) if args.side == LLAMA_CPP else Engine(args)
    made.measure("encode")  # warms up
    rows = made.rows.copy()

    def answer(request: str) -> dict[str, float]:
        if request != "rows":
            return made.measure(request)
        np.save(args.folder / f"{args.side}.npy", rows)
        return {}

    serve({"side": args.side}, answer)


def picture(args: argparse.Namespace, number: int) -> NDArray[np.uint8]:
    side = KINDS[args.kind].side
    return np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)


class Times:
    """The time of an encoding, and of its threads."""

    def __init__(self) -> None:
        self._encode, self._processor = time.perf_counter(), time.process_time()

    def until_now(self) -> dict[str, float]:
        took = time.process_time() - self._processor
        return {"encode": time.perf_counter() - self._encode, PROCESSOR: took}


class Engine:
    """backbay_engine on a backend."""

    def __init__(self, args: argparse.Namespace) -> None:
        import backbay_engine

        self.args, self.number = args, 0
        model, projector = paths(args)
        sizes: dict[str, Any] = {"context": CONTEXT, "parallel": 2, "num_threads": args.threads}
        self.llm = backbay_engine.load(model, args.side, projector=projector, **sizes)

    def measure(self, request: str) -> dict[str, float]:
        if request == "gaps":
            return self.gaps()
        if request == "encode":
            self.number += 1
            prepared = self.llm.prepare(picture(self.args, self.number))
            begun = Times()
            self.rows = self.llm.embed_image(prepared)
            return begun.until_now()
        shown = self.llm.prepare(picture(self.args, self.number))
        before = self.llm.store.counters.computed
        begun = time.perf_counter()
        self.llm.generate([shown, "And this?"], max_tokens=1)
        assert self.llm.store.counters.computed == before
        return {request: time.perf_counter() - begun}

    def gaps(self) -> dict[str, float]:
        """Milliseconds between tokens, alone and while a picture is encoded."""
        alone = self._gaps(threading.Event(), ALONE)
        self.number += 1
        prepared, over = self.llm.prepare(picture(self.args, self.number)), threading.Event()

        def encode() -> None:
            self.llm.embed_image(prepared)
            over.set()

        thread = threading.Thread(target=encode)
        thread.start()
        beside = self._gaps(over, CONTEXT - 64)
        thread.join()
        alone += self._gaps(threading.Event(), ALONE)
        return {
            "alone": statistics.median(alone),
            "beside": statistics.median(beside),
            "longest": max(beside),
        }

    def _gaps(self, over: threading.Event, most: int) -> list[float]:
        endless = {"logit_bias": {EOS: float("-inf")}, "temperature": 0, "reuse": False}
        handle = self.llm.submit([ord("a")], max_tokens=most, **endless)
        times = []
        for _ in handle:
            times.append(time.perf_counter())
            if over.is_set():
                handle.cancel()
        return [1000 * (after - before) for before, after in pairwise(times)]


class Mtmd:
    """llama.cpp's library for pictures, through llama-cpp-python's bindings."""

    def __init__(self, args: argparse.Namespace) -> None:
        import llama_cpp as lib
        from llama_cpp import mtmd_cpp as mtmd

        self.args, self.mtmd, self.number = args, mtmd, 0
        self.quiet = lib.llama_log_callback(lambda level, message, data: None)
        for be_quiet in (lib.llama_log_set, mtmd.mtmd_log_set, mtmd.mtmd_helper_log_set):
            be_quiet(self.quiet, None)
        lib.llama_backend_init()
        model, projector = paths(args)
        self.model = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        params = mtmd.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = False, args.threads, False
        self.context = mtmd.mtmd_init_from_file(str(projector).encode(), self.model, params)
        if self.context is None:
            raise SystemExit(f"mtmd cannot open {projector}")

    def measure(self, request: str) -> dict[str, float]:
        self.number += 1
        pixels = picture(self.args, self.number)
        data = (ctypes.c_uint8 * pixels.size).from_buffer(pixels)
        bitmap = self.mtmd.mtmd_bitmap_init(pixels.shape[1], pixels.shape[0], data)
        chunks = self.mtmd.mtmd_input_chunks_init()
        marker = self.mtmd.mtmd_default_marker()
        text = self.mtmd.mtmd_input_text()
        text.text, text.text_len, text.add_special, text.parse_special = marker, len(marker), False, True
        bitmaps = (self.mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if self.mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(text), bitmaps, 1):
            raise SystemExit("mtmd cannot tokenize the picture")
        begun, count = Times(), 0
        for n in range(self.mtmd.mtmd_input_chunks_size(chunks)):
            chunk = self.mtmd.mtmd_input_chunks_get(chunks, n)
            if self.mtmd.mtmd_input_chunk_get_type(chunk) == self.mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
                if self.mtmd.mtmd_encode_chunk(self.context, chunk):
                    raise SystemExit("mtmd cannot encode the picture")
                count = self.mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        assert count
        took = begun.until_now()
        self.rows = np.ctypeslib.as_array(self.mtmd.mtmd_get_output_embd(self.context), (count, WIDTH))
        self.mtmd.mtmd_input_chunks_free(chunks)
        self.mtmd.mtmd_bitmap_free(bitmap)
        return took


# -- the files -------------------------------------------------------------------------------------------


def write_files(args: argparse.Namespace) -> None:
    kind = KINDS[args.kind]
    text, encoder = paths(args)
    if not text.exists():
        _write_text(text, kind)
    if not encoder.exists():
        _write_encoder(encoder, kind, kind.blocks if args.blocks is None else args.blocks)


def _write_text(path: Path, kind: Kind) -> None:
    writer = gguf.GGUFWriter(path, kind.text)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    special = ["<s>", "</s>", *MARKS]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*map(_spelled, range(256)), "\u0100\u0100", *special])
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL] * len(special))
    writer.add_token_merges(["\u0100 \u0100"])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(True)
    _finish(writer, _text_tensors(kind, 257 + len(special)))


def _spelled(byte: int) -> str:
    """A byte as GPT-2 spells it."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return chr(byte) if byte in seen else chr(256 + [b for b in range(256) if b not in seen].index(byte))


def _text_tensors(kind: Kind, words: int) -> Tensors:
    yield "token_embd.weight", (words, WIDTH)
    yield "output.weight", (words, WIDTH)
    yield "output_norm.weight", (WIDTH,)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        norms = ["attn_norm", "ffn_norm"]
        if kind.text == "gemma3":
            norms += ["post_attention_norm", "post_ffw_norm"]
            yield from ((f"{block}attn_{part}_norm.weight", (WIDTH // HEADS,)) for part in "qk")
        yield from ((f"{block}{name}.weight", (WIDTH,)) for name in norms)
        yield from ((f"{block}attn_{part}.weight", (WIDTH, WIDTH)) for part in ("q", "k", "v", "output"))
        yield from ((f"{block}ffn_{part}.weight", (HIDDEN, WIDTH)) for part in ("gate", "up"))
        yield f"{block}ffn_down.weight", (WIDTH, HIDDEN)


def _write_encoder(path: Path, kind: Kind, blocks: int) -> None:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.has_llava_projector", kind.projector == "mlp")
    writer.add_bool("clip.use_gelu", kind.projector == "gemma3")
    writer.add_string("clip.projector_type", kind.projector)
    sizes = {
        "image_size": kind.side,
        "patch_size": kind.patch,
        "embedding_length": kind.width,
        "feed_forward_length": kind.hidden,
        "block_count": blocks,
        "attention.head_count": kind.heads,
        "projection_dim": WIDTH,
    }
    for name, value in sizes.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    if kind.projector == "mlp":
        writer.add_array("clip.vision.feature_layer", [blocks])
    _finish(writer, _encoder_tensors(kind, blocks))


def _encoder_tensors(kind: Kind, blocks: int) -> Tensors:
    width, patches = kind.width, (kind.side // kind.patch) ** 2
    yield "v.patch_embd.weight", (width, 3, kind.patch, kind.patch)
    yield "v.position_embd.weight", (patches + (kind.projector == "mlp"), width)
    for n in range(blocks):
        block = f"v.blk.{n}."
        shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "out")}
        shapes |= {"ffn_up": (kind.hidden, width), "ffn_down": (width, kind.hidden)}
        for name, shape in {**shapes, "ln1": (width,), "ln2": (width,)}.items():
            yield f"{block}{name}.weight", shape
            yield f"{block}{name}.bias", shape[:1]
    if kind.projector == "gemma3":
        yield "v.patch_embd.bias", (width,)
        yield from ((f"v.post_ln.{part}", (width,)) for part in ("weight", "bias"))
        yield "mm.soft_emb_norm.weight", (width,)
        yield "mm.input_projection.weight", (width, WIDTH)
    else:
        yield "v.class_embd", (width,)
        yield from ((f"v.pre_ln.{part}", (width,)) for part in ("weight", "bias"))
        for name, inputs in (("mm.0", width), ("mm.2", WIDTH)):
            yield f"{name}.weight", (WIDTH, inputs)
            yield f"{name}.bias", (WIDTH,)


def _finish(writer: gguf.GGUFWriter, tensors: Tensors) -> None:
    """Random values that keep activations near 1: matrices in f16, the rest in f32."""
    rng = np.random.default_rng(0)
    for name, shape in tensors:
        data = rng.standard_normal(shape, np.float32)
        if len(shape) == 1:
            data = 1 + 0.1 * data if name.endswith("weight") else 0.1 * data
        else:
            data /= np.float32(np.sqrt(np.prod(shape[1:])))
        half = len(shape) > 1 and "position" not in name
        writer.add_tensor(name, data.astype(np.float16 if half else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
