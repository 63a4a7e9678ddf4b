"""Compares Whisper with transformers: spectrograms, rows of the encoder, logits, and the tokens of transcripts.

    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_whisper.py
    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_whisper.py --seeds 8 --backends ggml

Needs torch and transformers. The models are small and random, and hear two seconds at once. Transcripts are greedy, and
without the limits of the reference's program; what transformers hears in the silence behind a sound is left out, as we
do. The exit status is 1 if anything differs by more than its limit. --store writes the answers of the tests.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from small_whisper import BINS, POSITIONS, SOUNDS, write_whisper
from sounds import heard
from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from backbay_engine import Audio, load

DATA = Path(__file__).parents[2] / "apps" / "engine" / "tests" / "data" / "sound"
LIMIT = 1e-5
IDS = [291, 294, 296, 5, 80, 7, 310, 60]
EXTRACTOR = WhisperFeatureExtractor(feature_size=BINS, chunk_length=POSITIONS // 50)


def nmse(ours: NDArray[np.float32], right: NDArray[np.float32]) -> float:
    return float(((ours - right) ** 2).sum() / (right**2).sum())


def features(sound: NDArray[np.float32]) -> Any:
    """Those of a whole sound, or of one that is padded to a window."""
    is_long = len(sound) > POSITIONS * 320
    padding = {"truncation": False, "padding": "longest"} if is_long else {}
    return EXTRACTOR(sound, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **padding)


def truth(model: Any, sound: NDArray[np.float32]) -> dict[str, Any]:
    given = features(sound)
    window = given.input_features[:, :, : 2 * POSITIONS]
    window = torch.nn.functional.pad(window, (0, 2 * POSITIONS - window.shape[2]))
    seen = model(input_features=window, decoder_input_ids=torch.tensor([IDS]))
    timed = model.generate(
        **given, language="de", task="transcribe", return_timestamps=True, return_segments=True
    )
    seconds, end = len(sound) / 16_000, model.generation_config.eos_token_id
    segments = [
        (
            float(each["start"]),
            min(float(each["end"]), seconds),
            [n for n in each["tokens"].tolist() if n < end],
        )
        for each in timed["segments"][0]
    ]
    detected = model.detect_language(given.input_features, num_segment_frames=2 * POSITIONS)
    return {
        "mel": given.input_features[0].numpy(),
        "rows": seen.encoder_last_hidden_state[0].numpy(),
        "logits": seen.logits[0].numpy(),
        "segments": [each for each in segments if each[2] and each[0] < seconds],
        "language": int(detected),
    }


def compare(llm: Any, sound: NDArray[np.float32], right: dict[str, Any]) -> list[float]:
    """The errors of numbers, and whether transcripts differ, as 0 or 1."""
    audio = Audio(sound, rate=16_000)
    prepared = llm.prepare(audio)
    window = prepared.window(0, 2 * POSITIONS)
    transcript = llm.transcribe(audio, language="de", temperature=0.0)
    marks = llm.tokenizer.token_id("<|endoftext|>")
    ours = [(each.start, each.end, [n for n in each.tokens if n < marks]) for each in transcript]
    texts = [each[2] for each in ours] == [each[2] for each in right["segments"]]
    times = texts and np.allclose([a[:2] for a in ours], [b[:2] for b in right["segments"]], atol=1e-3)
    language = llm.transcribe(audio, temperature=0.0).language
    known = llm.tokenizer.token_id(f"<|{language}|>") == right["language"]
    errors = [nmse(prepared.mel, right["mel"]), nmse(llm.embed_audio(window), right["rows"])]
    return [*errors, nmse(llm.logits(IDS, audio=window), right["logits"]), float(not times), float(not known)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="models")
    parser.add_argument("--backends", nargs="+", default=["cpu_ref", "ggml", "onnx"])
    parser.add_argument("--store", action="store_true")
    args = parser.parse_args()
    worst, stored = 0.0, {}
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            path = write_whisper(Path(folder) / str(seed), seed=seed)
            model = WhisperForConditionalGeneration.from_pretrained(path).eval()
            truths = {seconds: truth(model, heard(seconds, seed=seed)) for seconds in SOUNDS}
            for backend in args.backends:
                with load(path, backend, kv_dtype="f32") as llm:
                    found = [compare(llm, heard(s, seed=seed), right) for s, right in truths.items()]
                most = np.max(found, axis=0)
                names = "mel", "rows", "logits", "transcripts that differ", "languages"
                shown = (f"{name} {error:.1e}" for name, error in zip(names, most, strict=True))
                print(f"model {seed} on {backend}:", ", ".join(shown))
                worst = max(worst, float(most.max()))
            stored |= {f"{seed} {seconds}": right for seconds, right in truths.items()}
    if args.store:
        store(stored)
    return int(worst > LIMIT)


def store(truths: dict[str, dict[str, Any]]) -> None:
    kept = {
        name: {
            "logits": [float(f"{x:.6g}") for x in right["logits"][-1]],
            "row": [float(f"{x:.6g}") for x in right["rows"][-1]],
            "segments": right["segments"],
            "language": right["language"],
        }
        for name, right in truths.items()
        if name.startswith("0 ")
    }
    (DATA / "whisper.json").write_text(json.dumps({"ids": IDS, "sounds": kept}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
