"""The ear of a small Phi-4-multimodal: metadata and tensors."""

from __future__ import annotations

from small_vision_texts import WIDTH, Shapes

HEARS, EARS, EAR_HIDDEN, BINS, CHANNELS, DISTANCE, BLOCKS = 16, 2, 24, 20, 6, 8, 2
EAR_KEYS = {
    "embedding_length": HEARS,
    "feed_forward_length": EAR_HIDDEN,
    "block_count": BLOCKS,
    "attention.head_count": EARS,
    "attention.layer_norm_epsilon": 1e-5,
    "num_mel_bins": BINS,
}


def ear_tensors() -> Shapes:
    yield from ((f"a.mel_{name}.weight", (BINS,)) for name in ("mean", "scale"))
    for number, inner in ((0, 1), (2, 1), (5, 1)):
        yield f"a.conv2d.{number}.weight", (CHANNELS, inner, 3, 3)
        yield f"a.conv2d.{number}.bias", (CHANNELS,)
    for name, shape in (("conv2d.3", (CHANNELS, CHANNELS)), ("conv2d.6", (CHANNELS, CHANNELS))):
        yield from _biased(f"a.{name}", shape)
    yield from _biased("a.conv_out", (HEARS, CHANNELS * 3))  # of 20 bins, three are left
    yield "a.relative_bias.weight", (2 * DISTANCE, EARS)
    for layer in range(BLOCKS):
        block = f"a.blk.{layer}."
        for name in ("ln1", "ln2", "norm_conv", "ffn_norm", "ffn_norm_1"):
            yield from ((block + f"{name}.{part}", (HEARS,)) for part in ("weight", "bias"))
        for end in ("", "_1"):
            for name in ("up", "gate"):
                yield from _biased(block + f"ffn_{name}{end}", (EAR_HIDDEN, HEARS))
            yield from _biased(block + f"ffn_down{end}", (HEARS, EAR_HIDDEN))
        for name in ("attn_q", "attn_k", "attn_v", "attn_out", "conv_pw2", "conv_pw3"):
            yield from _biased(block + name, (HEARS, HEARS))
        yield from _biased(block + "conv_pw1", (2 * HEARS, HEARS))
        yield from _biased(block + "conv_dw", (HEARS, 3))
        yield from ((block + f"conv_{name}.bias", (HEARS,)) for name in ("value", "gate"))
    for kind in ("speech", "beside_picture"):
        yield from _biased(f"mm.a.{kind}.up", (WIDTH, HEARS))
        yield from _biased(f"mm.a.{kind}.down", (WIDTH, WIDTH))


def _biased(name: str, shape: tuple[int, int]) -> Shapes:
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
