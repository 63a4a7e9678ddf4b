"""Small random models that hear, their references, and their files by llama.cpp's converter."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import llama_converter
import numpy as np
import torch
import transformers
from llama_converter import CONTROL, NORMAL, UNKNOWN
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.nn import functional
from transformers import WhisperFeatureExtractor

WORDS = ["<unk>", "<s>", "</s>", "<pad>"]
MARKS = ["[BEGIN_AUDIO]", "[AUDIO]", "<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"]
LETTERS = ["\n", *(chr(n) for n in range(33, 127)), "▁", "▁a", "▁b"]
VOCABULARY = [*WORDS, *MARKS, *LETTERS]
ID = {word: id for id, word in enumerate(VOCABULARY)}
WIDTH, BINS, BLOCKS, STACK = 32, 80, 3, 8
TEXT = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
}
SPREAD = 4.0  # of random weights, so that blocks matter
STEPS = 64  # of weights within 1: files of few values are small when they are packed

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Kind:
    """A model, and its reference: features of a sound, their rows, and the ids that stand for a sound in a text.

    one_piece   it takes no sounds of several pieces
    """

    model: torch.nn.Module
    mel: Callable[[Array], Array]
    rows: Callable[[Array, int], torch.Tensor]
    ids: Callable[[int], list[int]]
    one_piece: bool = False


def extractor(positions: int) -> WhisperFeatureExtractor:
    made = WhisperFeatureExtractor(feature_size=BINS)
    made.n_samples = positions * 320
    return made


def encoder_config(positions: int) -> dict[str, Any]:
    return {"num_mel_bins": BINS, "max_source_positions": positions}


def shaken(model: torch.nn.Module) -> Any:
    """The model with larger weights, and biases and norms that are not their initial numbers; all are round."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.dim() > 1:
                each.mul_(SPREAD if "embed" not in name else 1)
            else:
                each.add_(0.2 * torch.randn_like(each))
            each.copy_(
                torch.round(each * STEPS) / STEPS
            )  # f16, to which the converter rounds some, has these, too
    return model.eval()


def voxtral(positions: int) -> Kind:
    audio = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": BLOCKS}
    heads = {"num_attention_heads": 2, "vocab_size": 51}
    config = transformers.VoxtralConfig(
        audio_config={**audio, **heads, **encoder_config(positions)},
        text_config={"model_type": "llama", "head_dim": 8, **TEXT},
        audio_token_id=ID["[AUDIO]"],
    )
    model = shaken(transformers.VoxtralForConditionalGeneration(config))
    chunk = positions * 320

    def mel(sound: Array) -> Array:
        given = extractor(positions)(
            sound,
            sampling_rate=16_000,
            padding=True,
            truncation=False,
            pad_to_multiple_of=chunk,
            return_tensors="np",
        )
        return given.input_features.reshape(BINS, -1, 2 * positions).transpose(1, 0, 2)

    def rows(features: Array, _samples: int) -> torch.Tensor:
        return model.get_audio_features(torch.tensor(features), return_dict=True).pooler_output

    return Kind(model, mel, rows, lambda count: [ID["[BEGIN_AUDIO]"], *[ID["[AUDIO]"]] * count])


def qwen2_audio(positions: int) -> Kind:
    audio = {"d_model": WIDTH, "encoder_layers": BLOCKS, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
    config = transformers.Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **audio, **encoder_config(positions)},
        text_config={"model_type": "qwen2", "tie_word_embeddings": False, **TEXT},
        audio_token_index=ID["<|AUDIO|>"],
    )
    model = shaken(transformers.Qwen2AudioForConditionalGeneration(config))

    def mel(sound: Array) -> Array:
        given = extractor(positions)(sound, sampling_rate=16_000, padding="max_length", return_tensors="np")
        return given.input_features[0]

    def rows(features: Array, samples: int) -> torch.Tensor:
        """As the model's forward pass masks the padding, and drops it."""
        tower, heard = model.model.audio_tower, -(-samples // 160)
        seen, count = (int(n) for n in tower._get_feat_extract_output_lengths(torch.tensor(heard)))
        mask = torch.zeros(1, 1, positions, positions)
        mask[..., seen:] = torch.finfo(torch.float32).min
        hidden = tower(torch.tensor(features)[None], attention_mask=mask).last_hidden_state
        return model.model.multi_modal_projector(hidden)[0, :count]

    return Kind(model, mel, rows, lambda count: [ID["<|AUDIO|>"]] * count, one_piece=True)


class Ultravox(torch.nn.Module):
    """Transformers lacks it. A transcription of the authors' model: Whisper's blocks, frames stacked, and a gate."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        audio = {
            "d_model": WIDTH,
            "encoder_layers": BLOCKS,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 64,
        }
        self.positions = positions
        self.config = transformers.WhisperConfig(**audio, **encoder_config(positions), pad_token_id=0)
        self.audio_tower = transformers.models.whisper.modeling_whisper.WhisperEncoder(self.config)
        self.text = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))
        inner, hidden, out = WIDTH * STACK, 40, TEXT["hidden_size"]
        norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
        self.multi_modal_projector = torch.nn.ModuleDict(
            {
                "ln_pre": norm(inner, eps=1e-6),
                "linear_1": torch.nn.Linear(inner, hidden, bias=False),
                "ln_mid": norm(hidden // 2, eps=1e-6),
                "linear_2": torch.nn.Linear(hidden // 2, out, bias=False),
            }
        )

    def rows(self, mel: torch.Tensor, _samples: int) -> torch.Tensor:
        """The rows of (bins, frames), chunk by chunk; later chunks are padded with zeros, which are masked."""
        size, found = 2 * self.positions, []
        for begin in range(0, mel.shape[1], size):
            chunk = mel[:, begin : begin + size]
            frames = chunk.shape[1]
            chunk = functional.pad(chunk, (0, size - frames)) if begin else chunk
            count = -(-frames // (2 * STACK))
            found.append(self.projected(self.encoded(chunk[None], (frames - 1) // 2 + 1))[:count])
        return torch.cat(found)

    def encoded(self, mel: torch.Tensor, seen: int) -> torch.Tensor:
        tower = self.audio_tower
        x = functional.gelu(tower.conv2(functional.gelu(tower.conv1(mel)))).permute(0, 2, 1)
        length = x.shape[1]
        x = x + tower.embed_positions.weight[:length]
        mask = torch.zeros(1, 1, length, length)
        mask[..., seen:] = torch.finfo(torch.float32).min
        for layer in tower.layers:
            x = layer(x, mask)
            x = x[0] if isinstance(x, tuple) else x
        return tower.layer_norm(x)[0]

    def projected(self, x: torch.Tensor) -> torch.Tensor:
        p = self.multi_modal_projector
        x = functional.pad(x, (0, 0, 0, -len(x) % STACK)).reshape(-1, WIDTH * STACK)
        value, gate = p["linear_1"](p["ln_pre"](x)).chunk(2, dim=-1)
        return p["linear_2"](p["ln_mid"](functional.silu(gate) * value))


def ultravox(positions: int) -> Kind:
    model = shaken(Ultravox(positions))

    def mel(sound: Array) -> Array:
        given = extractor(positions)(
            np.pad(sound, (0, max(0, 320 - len(sound)))),
            sampling_rate=16_000,
            padding="longest",
            pad_to_multiple_of=160,
            truncation=False,
            return_tensors="np",
        )
        return given.input_features[0]

    def rows(features: Array, samples: int) -> torch.Tensor:
        return model.rows(torch.tensor(features), samples)

    return Kind(model, mel, rows, lambda count: [ID["<pad>"]] * count)


KINDS = {"ultravox": ultravox, "voxtral": voxtral, "qwen2-audio": qwen2_audio}


def logits(kind: Kind, before: list[int], rows: torch.Tensor, after: list[int]) -> NDArray[np.float32]:
    """The logits of a text with a sound in it."""
    ids = [*before, *kind.ids(len(rows)), *after]
    model: Any = kind.model
    whole = getattr(model, "text", None) or model
    embeddings = whole.get_input_embeddings()(torch.tensor(ids))
    end = len(ids) - len(after)
    embeddings[end - len(rows) : end] = rows
    text = whole if whole is not model else None
    if text is not None:
        return text(inputs_embeds=embeddings[None]).logits[0].numpy()
    hidden = model.model.language_model(inputs_embeds=embeddings[None]).last_hidden_state
    return model.lm_head(hidden)[0].numpy()


@torch.no_grad()
def text_logits(kind: Kind, ids: list[int]) -> NDArray[np.float32]:
    """The logits of a text without a sound."""
    model: Any = kind.model
    given = torch.tensor([ids])
    if isinstance(model, Ultravox):
        return model.text(given).logits[0].numpy()
    return model.lm_head(model.model.language_model(given).last_hidden_state)[0].numpy()


def save(kind: Kind, folder: Path) -> Path:
    """Write the folder of transformers; the folder of the text, which is another one for ultravox."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(kind.model, Ultravox):
        kind.model.text.save_pretrained(folder / "text")
        audio = kind.model.config.to_dict()
        described = {"architectures": ["UltravoxModel"], "model_type": "ultravox", "stack_factor": STACK}
        config = {**described, "audio_config": audio, "text_config": TEXT, "hidden_size": 40}
        (folder / "config.json").write_text(json.dumps(config))
        weights = {
            name: each for name, each in kind.model.state_dict().items() if not name.startswith("text.")
        }
        save_file({name: each.contiguous() for name, each in weights.items()}, folder / "model.safetensors")
    else:
        kind.model.save_pretrained(folder)  # type: ignore[operator]
        _publish_names(folder)
    return folder / "text" if (folder / "text").exists() else folder


def write(kind: Kind, folder: Path, converter: Path) -> tuple[Path, Path]:
    """The text model and the projector, converted from the folder that transformers writes."""
    text = save(kind, folder)

    def prepare(made: Any) -> None:
        made.set_vocab = lambda: write_vocabulary(made.gguf_writer)

    model = llama_converter.convert(text, folder / "model.gguf", converter, prepare)
    return model, llama_converter.convert(
        folder, folder / "mmproj.gguf", converter, lambda _: None, projector=True
    )


def _publish_names(folder: Path) -> None:
    """Weights by the names of the published files, where newer versions of transformers save others."""
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    renamed = {}
    for name, each in weights.items():
        short = name.removeprefix("model.")
        if short.startswith("language_model."):
            short = "language_model.model." + short.removeprefix("language_model.").removeprefix("model.")
        elif short.startswith("lm_head"):
            short = "language_model." + short
        renamed[short] = each
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})


def write_vocabulary(writer: Any) -> None:
    special = len(WORDS) + len(MARKS)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(VOCABULARY)
    writer.add_token_scores([0.0] * special + [-float(len(word) == 1) for word in VOCABULARY[special:]])
    writer.add_token_types([UNKNOWN, *[CONTROL] * (special - 1), *[NORMAL] * (len(VOCABULARY) - special)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(3)
    writer.add_add_space_prefix(False)
