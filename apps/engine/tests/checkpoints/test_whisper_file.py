from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from model_scripts import nmse
from small_whisper import CONTEXT, write_ggml, write_whisper
from sounds import heard

import backbay
from backbay import ModelFileError
from backbay.discovery import open_model
from backbay_engine import Audio, load
from backbay_engine.checkpoints.whisper_tokens import whisper_tokens

IDS = [291, 294, 296, 5, 80, 7, 310, 60]
AUDIO = Audio(heard(5.0), rate=16_000)
SIZES = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # four times the width, as the format implies
BACKENDS = sorted(backbay.backends())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kind", "limit"), [("F32", 1e-9), ("F16", 1e-5)])
def test_a_file_of_whisper_cpp_is_the_model_of_the_folder(
    tmp_path: Path, backend: str, kind: str, limit: float
) -> None:
    folder = write_whisper(tmp_path / "folder", **SIZES)
    file = write_ggml(tmp_path / "ggml-small.bin", kind=kind)
    with load(folder, backend, num_threads=1) as right, load(file, backend, num_threads=1) as ours:
        window = right.prepare(AUDIO).window(0, 200)
        assert ours.context == CONTEXT
        assert nmse(ours.embed_audio(window), right.embed_audio(window)) < limit
        assert nmse(ours.logits(IDS, audio=window), right.logits(IDS, audio=window)) < limit


def test_transcripts_of_both_files_are_alike(tmp_path: Path) -> None:
    folder = write_whisper(tmp_path / "folder", **SIZES)
    with load(folder, "cpu_ref", num_threads=1) as opened:
        right = opened.transcribe(AUDIO, language="en", task="translate", temperature=0.0)
        vocabulary = opened.tokenizer
    for with_end in (False, True):
        file = write_ggml(tmp_path / "ggml-small.bin", kind="F32", with_end=with_end)
        with load(file, "cpu_ref", num_threads=1) as ours:
            assert ours.tokenizer.encode("Once upon a time") == vocabulary.encode("Once upon a time")
            marks = [ours.tokenizer.token_text(id) for id in range(290, ours.vocabulary_size)]
            assert marks == [vocabulary.token_text(id) for id in range(290, ours.vocabulary_size)]
            found = ours.transcribe(AUDIO, language="english", task="translate", temperature=0.0)
            assert found.language == right.language == "en"
            assert found[0].start <= 1.0


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_0", "Q4_1"])
def test_quantized_files_are_near_the_others(tmp_path: Path, kind: str) -> None:
    sizes = {"d_model": 32, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    limit = {"Q8_0": 3e-3, "Q5_0": 1e-1, "Q4_1": 3e-1}[kind]
    plain, small = (write_ggml(tmp_path / f"{each}.bin", kind=each, **sizes) for each in ("F32", kind))
    with load(plain, "cpu_ref", num_threads=1) as right, load(small, "cpu_ref", num_threads=1) as ours:
        window = right.prepare(AUDIO).window(0, 200)
        error = nmse(ours.logits(IDS, audio=window), right.logits(IDS, audio=window))
        assert 0 < error < limit


def test_published_vocabularies_have_their_marks_where_whisper_cpp_puts_them() -> None:
    """By the numbers in whisper.cpp's source, for English, for many languages, and for one more."""
    for words, count, end, transcribe, languages in (
        (50256, 51864, 50256, 50358, 99),
        (50257, 51865, 50257, 50359, 99),
        (50257, 51866, 50257, 50360, 100),
    ):
        texts = [bytes([n]) for n in range(256)] + [b""] * (words - 256)
        keys = whisper_tokens(tuple(texts), count, 1500)
        tokens = keys["tokenizer.ggml.tokens"]
        assert len(tokens) == count
        assert tokens.index("<|endoftext|>") == end
        assert tokens.index("<|startoftranscript|>") == end + 1
        assert tokens.index("<|en|>") == end + 2
        assert tokens.index("<|translate|>") == end + 2 + languages
        assert tokens.index("<|transcribe|>") == transcribe
        assert tokens.index("<|notimestamps|>") == transcribe + 4
        assert tokens.index("<|30.00|>") == count - 1
        assert keys["whisper.transcript.multilingual"] == (end != 50256)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:3000], "before the end"),
        (lambda data: data[:-7], "before the end"),
        (lambda data: data[:4] + struct.pack("<i", -1) + data[8:], "words from 1 to"),
        (lambda data: data[:4] + struct.pack("<i", 1 << 30) + data[8:], "words from 1 to"),
        (lambda data: data[:40] + struct.pack("<i", 128) + data[44:], "filters of 128 bins"),
        (lambda data: data[:44] + struct.pack("<i", 7) + data[48:], "quantized blocks of version 2"),
        (lambda data: data + b"\0" * 12, "the rank of a tensor from 1 to 4"),
        (lambda data: data[:4], "before the end"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: object, reason: str) -> None:
    file = write_ggml(tmp_path / "ggml-small.bin")
    file.write_bytes(change(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(ModelFileError, match=reason):
        open_model(file)


def test_tensors_that_are_missing_are_named(tmp_path: Path) -> None:
    file = write_ggml(tmp_path / "ggml-small.bin", decoder_layers=2)
    data = bytearray(file.read_bytes())
    data[36:40] = struct.pack("<i", 3)  # blocks of the decoder
    file.write_bytes(data)
    with pytest.raises(ModelFileError, match=r"blk\.2\.attn_norm\.weight"):
        load(file, "cpu_ref", num_threads=1)


def test_symbols_that_nobody_speaks_never_come() -> None:
    texts = [bytes([n]) for n in range(256)] + [b" -", b"--", b"\xe2\x99", b"\xe2\x99\xaa", b" a"]
    keys = whisper_tokens(tuple(texts), len(texts) + 113, 100)
    suppressed = set(keys["whisper.transcript.suppressed_ids"].tolist())
    assert {ord("#"), 256, 257, 259} <= suppressed
    assert {ord("-"), ord("'"), ord("a"), 260} & suppressed == set()
    assert "âĻ ª" in keys["tokenizer.ggml.merges"]
    assert np.all(keys["tokenizer.ggml.token_type"][261:] == 3)
