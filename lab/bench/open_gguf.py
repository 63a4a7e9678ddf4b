"""Time to open a model with 128k tokens and 128k merges, with backbay.gguf and with gguf.GGUFReader."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from gguf import GGUFReader, GGUFWriter
from sides import write_json

import backbay.gguf


def write(path: Path, entries: int) -> None:
    """Write a header as large as a real model's, with words as long as in a real vocabulary."""
    lengths = np.random.default_rng(0).integers(2, 14, entries)
    words = [f"{index:x}".rjust(int(length), "Ġ") for index, length in enumerate(lengths)]
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(32)
    writer.add_token_list(words)
    writer.add_token_types([1] * entries)
    writer.add_token_merges([f"{word[:3]} {word[3:]}" for word in words])
    for index in range(300):
        writer.add_tensor(f"blk.{index // 10}.{index % 10}.weight", np.zeros((4, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(path: Path) -> None:
    with backbay.gguf.open(path) as file:
        file.metadata.strings("tokenizer.ggml.tokens")
        file.metadata.strings("tokenizer.ggml.merges")


def ours_with_all_strings(path: Path) -> None:
    with backbay.gguf.open(path) as file:
        for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
            list(file.metadata.strings(key))


def theirs(path: Path) -> None:
    GGUFReader(path)


def milliseconds(action: Callable[[Path], None], path: Path, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action(path)
        times.append((time.perf_counter() - start) * 1e3)
    return median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=128 * 1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=150.0, help="milliseconds that opening may take")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.gguf"
        write(path, options.entries)
        size = path.stat().st_size / 2**20
        own = milliseconds(ours, path, options.repeats)
        full = milliseconds(ours_with_all_strings, path, options.repeats)
        other = milliseconds(theirs, path, options.repeats)
    print(f"{options.entries} tokens and merges, 300 tensors, {size:.1f} MiB, median of {options.repeats}")
    print(f"{'backbay.gguf.open':<36}{own:>10.1f} ms")
    print(f"{'  and decoding all the strings':<36}{full:>10.1f} ms")
    print(f"{'gguf.GGUFReader':<36}{other:>10.1f} ms")
    print(f"{'ratio':<36}{other / own:>10.0f}")
    write_json(options.json, {"backbay.gguf.open": own, "with all strings": full, "gguf.GGUFReader": other})
    return 0 if own < options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
