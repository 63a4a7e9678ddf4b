"""Compares Phi-4-multimodal with transformers: pixels, spectrograms, the rows of both encoders, and logits with adapters.

    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_phi4.py
    PYTHONPATH=apps/engine/tests/inputs python lab/engine/compare_phi4.py --side 448 --backends ggml

Needs torch, torchvision, transformers and peft. The model is small and random; a crop of a picture has --side pixels, 448
in the published model. It is saved as transformers and PEFT save it, with an adapter for pictures and one for sound, and
loaded as a folder; and once more in Microsoft's layout, which has the adapters among the model's tensors. The numbers are square errors over the squares of the reference's, the largest of all pictures, sounds
or prompts: of our pixels and spectrograms, of rows and logits with the reference's, and with our own. The exit status is 1
if one is above its limit.
--store writes the files of apps/engine/tests/media.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from checkpoint_folders import TEMPLATE, byte_pairs
from numpy.typing import NDArray
from packed_folders import store_folder
from PIL import Image as Pillow
from published_phi4 import publish
from sounds import heard
from torch.nn.functional import gelu
from transformers import (
    Phi4MultimodalConfig,
    Phi4MultimodalFeatureExtractor,
    Phi4MultimodalForCausalLM,
    Phi4MultimodalImageProcessor,
)

from backbay_engine import LLM, Audio, Image, load

DATA = Path(__file__).parents[2] / "apps" / "engine" / "tests" / "data" / "phi4"
LIMITS = {"pixels": 2e-4, "mel": 1e-5, "rows": 1e-5, "own rows": 1e-3, "logits": 2e-5, "own logits": 2e-3}
CROPS = 6
PICTURES = {
    "square": (1.8, 1.8),
    "wide": (1.1, 2.7),
    "tall": (2.5, 1.1),
    "small": (0.5, 0.8),
    "large": (5.4, 5.9),
    "thin": (2.7, 19.6),
}
"""Heights and widths in crops."""
SOUNDS = {
    "tiny": 0.025,
    "short": 0.5,
    "longer": 3.3333,
    "piece": 40.0,
    "two pieces": 41.3,
    "three pieces": 85.0,
}
"""Seconds; a piece has 40."""
STORED = ("wide", "tall", "short", "longer")
BEFORE, BETWEEN, AFTER = [5, 20, 30], [40], [41, 42]
TARGETS = r"model\.layers\.\d+\.(self_attn\.(qkv|o)_proj|mlp\.(gate_up|down)_proj)"
RANKS = {"vision": 4, "speech": 3, "own": 2}
STEPS = 64  # of weights within 1: files of few values are small when they are packed
Array = NDArray[np.float32]


class Reference:
    """A small random model of transformers, with adapters, and what it makes of pictures and sounds."""

    def __init__(self, folder: Path, side: int) -> None:
        tokenizer = byte_pairs()
        tokenizer.add_special_tokens(["<|image|>", "<|audio|>"])
        self.image, self.audio = (tokenizer.token_to_id(f"<|{kind}|>") for kind in ("image", "audio"))
        torch.manual_seed(0)
        config = configuration(tokenizer.get_vocab_size(), side, self.image, self.audio)
        config._attn_implementation = "eager"  # others take a mask that hides nothing for a causal one
        whole = shaken(Phi4MultimodalForCausalLM(config))
        self.embed, self.side = whole.model.embed_tokens_extend, side
        whole.save_pretrained(folder)
        tokenizer.save(str(folder / "tokenizer.json"))
        said = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(said))
        self.extractor = Phi4MultimodalFeatureExtractor()
        self.processor = Phi4MultimodalImageProcessor(size={"height": side, "width": side}, dynamic_hd=CROPS)
        described = {"image_processor": json.loads(self.processor.to_json_string())}
        (folder / "processor_config.json").write_text(json.dumps(described))
        self.model = adapted(whole, folder)

    def picture(self, rgb: NDArray[np.uint8]) -> tuple[dict[str, Any], Array]:
        """The values that the model takes, and the rows."""
        given = dict(self.processor([Pillow.fromarray(rgb)], return_tensors="pt"))
        del given["num_img_tokens"]  # right for crops of 448 pixels alone
        found: list[torch.Tensor] = []
        hook = self.embed.image_embed.img_projection_down.register_forward_hook(
            lambda _module, _given, rows: found.append(rows[0])
        )
        tokens = torch.zeros(1, 0, dtype=torch.long)
        with suppress(RuntimeError, IndexError):  # as there is no token for the rows
            self.embed.image_embed(tokens, torch.zeros(1, 0, 1), **given)
        hook.remove()
        return given, found[0].numpy()

    def sound(self, samples: Array) -> tuple[dict[str, Any], list[Array]]:
        """The values that the model takes, and the rows for sound alone, and beside a picture."""
        given = dict(self.extractor(samples, sampling_rate=16_000, return_tensors="pt"))
        ear, count = self.embed.audio_embed, int(given["audio_embed_sizes"][0])
        hidden = ear.encoder(given["audio_input_features"], None)
        pairs = (
            (ear.up_proj_for_speech, ear.down_proj_for_speech),
            (ear.up_proj_for_vision_speech, ear.down_proj_for_vision_speech),
        )
        return given, [down(gelu(up(hidden)))[0, :count].numpy() for up, down in pairs]

    def logits(self, ids: list[int], adapter: str | None, **given: Any) -> Array:
        prompt = torch.tensor([ids])
        if adapter is None:
            with self.model.disable_adapter():
                return np.asarray(self.model(input_ids=prompt, **given).logits[0])
        self.model.set_adapter(adapter)
        return np.asarray(self.model(input_ids=prompt, **given).logits[0])


def configuration(words: int, side: int, image: int, audio: int) -> Phi4MultimodalConfig:
    sees = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    hears = {"hidden_size": 16, "intermediate_size": 24, "num_blocks": 2, "num_attention_heads": 4}
    convolutions = {"ext_pw_out_channel": 16, "depthwise_separable_out_channel": 16, "nemo_conv_channels": 8}
    short, long = [1.0, 1.1, 1.2], [1.0, 2.0, 4.0]
    return Phi4MultimodalConfig(
        vocab_size=words,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        original_max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=[1],
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": short,
            "long_factor": long,
            "original_max_position_embeddings": 2048,
        },
        vision_config={**sees, "image_size": side, "crop_size": side, "image_token_id": image},
        audio_config={**hears, **convolutions, "bias_max_distance": 20, "audio_token_id": audio},
    )


def shaken(model: Phi4MultimodalForCausalLM) -> Phi4MultimodalForCausalLM:
    """The model with round random weights, so that all parts matter."""
    ear = model.model.embed_tokens_extend.audio_embed.encoder
    with torch.no_grad():
        for each in model.parameters():
            wide = each.dim() > 1 and each[0].numel() > 1
            random = torch.randn_like(each) * (1.5 * each[0].numel() ** -0.5 if wide else 0.2)
            each.copy_(torch.round((random if wide else each + random) * STEPS) / STEPS)
        ear.encoder_embedding.global_mean.copy_(8 + torch.round(torch.randn(80)))
        ear.encoder_embedding.global_invstd.copy_(torch.full((80,), 0.25))
    return model.eval()


def adapted(model: Phi4MultimodalForCausalLM, folder: Path) -> peft.PeftModel:
    """The model with random adapters, which are saved beside it; `own` is a caller's."""
    configs = {
        name: peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=TARGETS)
        for name, rank in RANKS.items()
    }
    made = peft.get_peft_model(model, configs["vision"], "vision")
    for name in [*RANKS][1:]:
        made.add_adapter(name, configs[name])
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_" in name:
                weight.copy_(
                    torch.round(torch.randn_like(weight) * 0.5 * weight.shape[-1] ** -0.5 * STEPS) / STEPS
                )
    made.save_pretrained(folder / "saved")
    for name in RANKS:
        (folder / "saved" / name).rename(folder / f"{name}-lora")
    return made.eval()


def drawn(size: tuple[int, int], seed: int) -> NDArray[np.uint8]:
    """A smooth picture of this height and width, with some noise."""
    rng = np.random.default_rng(seed)
    small = Pillow.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize(size[::-1], Pillow.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + rng.integers(-20, 21, (*size, 3)), 0, 255).astype(np.uint8)


def nmse(ours: Array, right: Array) -> float:
    if ours.shape != right.shape:
        return float("inf")
    return float(((ours.astype(np.float64) - right) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


Truths = dict[str, Any]


def truths(reference: Reference) -> Truths:
    """What the reference makes of each picture and each sound, by name, and the logits of prompts with them."""
    found: Truths = {"text": reference.logits([*range(5, 60)], None)}
    for seed, (name, (height, width)) in enumerate(PICTURES.items()):
        rgb = drawn((round(height * reference.side), round(width * reference.side)), seed)
        given, rows = reference.picture(rgb)
        ids = [*BEFORE, *[reference.image] * len(rows), *BETWEEN]
        logits = {adapter: reference.logits(ids, adapter, **given) for adapter in (None, "vision", "own")}
        found[name] = {"given": given, "rgb": rgb, "rows": rows, "logits": logits}
    for seed, (name, seconds) in enumerate(SOUNDS.items()):
        samples = heard(seconds, seed=seed)
        given, (rows, beside) = reference.sound(samples)
        ids = [*BEFORE, *[reference.audio] * len(rows), *BETWEEN]
        logits = {adapter: reference.logits(ids, adapter, **given) for adapter in (None, "speech", "own")}
        found[name] = {"given": given, "samples": samples, "rows": rows, "beside": beside, "logits": logits}
    picture, sound = found["wide"], found["short"]
    images, sounds = (
        [each] * len(case["rows"]) for each, case in ((reference.image, picture), (reference.audio, sound))
    )
    ids = [*BEFORE, *images, *BETWEEN, *sounds, *AFTER]
    found["both"] = reference.logits(ids, "vision", **picture["given"], **sound["given"])
    return found


Errors = Iterator[tuple[str, float]]


def errors(llm: LLM, known: Truths) -> Errors:
    """What was compared, and its error."""
    yield "logits", nmse(llm.logits([*range(5, 60)]), known["text"])
    ours: dict[str, Any] = {}
    for name in PICTURES:
        case = known[name]
        pixels = case["given"]["image_pixel_values"].numpy()
        own = llm.prepare(Image(case["rgb"]))
        yield "pixels", nmse(own.pixels, pixels)
        ours[name] = own.replace(pixels=pixels)
        yield "rows", nmse(llm.embed_image(ours[name]), case["rows"])
        yield "own rows", nmse(llm.embed_image(own), case["rows"])
        yield from of_prompts(llm, "", case["logits"], "vision", ours[name])
        yield from of_prompts(llm, "own ", case["logits"], "vision", own)
    for name in SOUNDS:
        case = known[name]
        mel = case["given"]["audio_input_features"][0].numpy()
        own = llm.prepare(Audio(case["samples"], rate=16_000))
        yield "mel", nmse(own.mel, mel)
        ours[name] = own.replace(mel=mel)
        yield "rows", nmse(llm.embed_audio(ours[name]), case["rows"])
        yield "rows", nmse(llm.embed_audio(ours[name].replace(beside_picture=True)), case["beside"])
        yield "own rows", nmse(llm.embed_audio(own), case["rows"])
        yield from of_prompts(llm, "", case["logits"], "speech", ours[name])
        yield from of_prompts(llm, "own ", case["logits"], "speech", own)
    yield "logits", nmse(llm.logits([BEFORE, ours["wide"], BETWEEN, ours["short"], AFTER]), known["both"])


def of_prompts(llm: LLM, whose: str, right: dict[str | None, Array], default: str, given: Any) -> Errors:
    """The errors of a prompt with the adapter of its modality, without it, and with a caller's."""
    for adapter, logits in right.items():
        choice = {default: 0.0} if adapter is None else None if adapter == default else adapter
        yield f"{whose}logits", nmse(llm.logits([BEFORE, given, BETWEEN], adapter=choice), logits)


def compare(layout: str, folder: Path, own: Path, backend: str, known: Truths) -> bool:
    """Print the largest errors on a backend."""
    worst = defaultdict[str, float](float)
    with load(
        folder, backend, context=2048, kv_dtype="f32", adapters={"own": own}, store_bytes=1 << 20
    ) as llm:
        for what, error in errors(llm, known):
            worst[what] = max(worst[what], error)
    print(
        f"phi4, {layout}, on {backend}:",
        ", ".join(f"{what} {worst[what]:.1e}" for what in LIMITS),
        flush=True,
    )
    return all(worst[what] <= limit for what, limit in LIMITS.items())


def store(folder: Path, known: Truths) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    store_folder(folder, DATA / "phi4.hf.xz")
    found = {"text logits": known["text"][-1], "both logits": known["both"][-1]}
    for name in STORED:
        case = known[name]
        found |= {f"{name} {key}": case[key] for key in ("rgb",) if key in case}
        found |= {f"{name} {key}": case[key].astype(np.float16) for key in ("rows", "beside") if key in case}
        found |= {f"{name} {adapter} logits": each[-1] for adapter, each in case["logits"].items()}
    np.savez_compressed(DATA / "phi4.npz", **found)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--side", type=int, default=56)
    parser.add_argument("--backends", nargs="+", default=["cpu_ref", "ggml", "onnx"])
    parser.add_argument("--store", action="store_true")
    args = parser.parse_args()
    with torch.inference_mode(), tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "phi4"
        reference = Reference(folder, args.side)
        known = truths(reference)
        layouts = {"as transformers saves it": folder, "as Microsoft publishes it": Path(name) / "published"}
        publish(*layouts.values())
        agrees = [
            compare(layout, each, folder / "own-lora", backend, known)
            for layout, each in layouts.items()
            for backend in args.backends
        ]
        if args.store:
            store(folder, known)
    return int(not all(agrees))


if __name__ == "__main__":
    sys.exit(main())
