"""Every quantized type that gguf can dequantize, as a weight of a file and as a leaf."""

from math import prod

import gguf
import numpy as np
import pytest
from exact import assert_rounds_to, leaf, numbers
from gguf import GGMLQuantizationType, GGUFWriter, quants

import backbay.gguf
from backbay import BackendParams, DType, OptionError, UnsupportedOpError
from backbay_cpu_ref import CpuRef

SUMS = 1e-13
SHAPE = (256, 6, 4)


def decodable(dtype):
    try:
        quants.dequantize(np.zeros((1, dtype.type_size), np.uint8), GGMLQuantizationType(dtype.value))
    except NotImplementedError:
        return False
    return True


QUANTIZED = [dtype for dtype in DType if dtype.is_quantized]
DECODABLE = [dtype for dtype in QUANTIZED if decodable(dtype)]


def blocks(dtype, shape=SHAPE):
    """Bytes of a tensor, (rows, bytes of a row): quantized numbers, or else any bytes that stand for finite ones."""
    random = np.random.default_rng(dtype.value)
    rows = (prod(shape[1:]), shape[0])
    try:
        return quants.quantize(
            random.standard_normal(rows).astype(np.float32), GGMLQuantizationType(dtype.value)
        )
    except NotImplementedError:
        raw = random.integers(0, 256, (rows[0], dtype.row_size(rows[1])), dtype=np.uint8)
    flat = raw.reshape(-1, dtype.type_size)
    for _ in range(
        200
    ):  # scales are f16 or f8 somewhere in a block: draw those again that stand for NaN or too much
        wrong = ~sane(flat, dtype)
        if not wrong.any():
            return raw
        flat[wrong] = random.integers(0, 256, (wrong.sum(), dtype.type_size), dtype=np.uint8)
    raise AssertionError(f"no sane blocks of {dtype}")


def sane(flat, dtype):
    with np.errstate(all="ignore"):
        numbers = quants.dequantize(flat, GGMLQuantizationType(dtype.value))
    return (np.abs(numbers) < 1e4).all(axis=-1)


def meaning(dtype):
    """The decoded blocks, dimension 0 first, as float64."""
    decoded = quants.dequantize(blocks(dtype), GGMLQuantizationType(dtype.value))
    return decoded.astype(np.float64).T.reshape(SHAPE, order="F")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "quantized.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    for dtype in DECODABLE:
        raw = blocks(dtype).reshape(*SHAPE[:0:-1], -1)
        writer.add_tensor(f"blk.0.{dtype}.weight", raw, raw_dtype=GGMLQuantizationType(dtype.value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=["of a file", "decoded each time", "a leaf"])
def weight(request, path):
    """A function of a context and a dtype: the tensor that holds its blocks."""
    if request.param == "a leaf":
        with CpuRef() as backend:
            yield backend, lambda ctx, dtype: ctx.from_bytes(dtype, blocks(dtype).tobytes(), *SHAPE)
        return
    options = {} if request.param == "of a file" else {"decoded_weights": 0}
    with CpuRef(backbay.gguf.open(path), BackendParams(options=options)) as backend:
        backend.load()
        yield backend, lambda ctx, dtype: backend.get(f"blk.0.{dtype}.weight")


def test_gguf_and_backbay_agree_on_block_sizes():
    for dtype in QUANTIZED:
        assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType(dtype.value)] == (dtype.block_size, dtype.type_size)
    assert len(DECODABLE) > 20


@pytest.mark.parametrize("dtype", DECODABLE, ids=str)
def test_every_quantized_type_is_multiplied_picked_cast_and_copied(weight, dtype):
    backend, get = weight
    numbers_of = meaning(dtype)
    random = np.random.default_rng(1)
    x, per_expert = numbers(random, (256, 2, 4)), numbers(random, (256, 1, 3))
    ids, chosen = random.integers(0, 6, (5, 4)), random.integers(0, 4, (2, 3))
    with backend.new_context() as ctx:
        w = get(ctx, dtype)
        assert (w.dtype, w.shape) == (dtype, SHAPE)
        kept = ctx.zeros(DType.F32, *SHAPE)
        results = {
            "mulmat": (w.mulmat(ctx, leaf(ctx, x)), np.einsum("kna,kma->nma", numbers_of, x)),
            "mulmat_id": (
                w.mulmat_id(ctx, leaf(ctx, per_expert), leaf(ctx, chosen, DType.I32)),
                np.einsum("knut,kt->nut", numbers_of[:, :, chosen], per_expert[:, 0]),
            ),
            "rows": (
                w.rows(ctx, leaf(ctx, ids, DType.I32)),
                np.stack([numbers_of[:, ids[:, a], a] for a in range(4)], 2),
            ),
            "cast": (w.cast(ctx, DType.F32), numbers_of),
            "cast to bf16": (w.cast(ctx, DType.BF16), numbers_of),
            "copy": (w.copy(ctx, kept), numbers_of),
            "slice": (w.slice(ctx, 1, 1, 5, 2).cast(ctx, DType.F32), numbers_of[:, 1:5:2]),
            "permute": (w.permute(ctx, 0, 2, 1).cast(ctx, DType.F32), np.swapaxes(numbers_of, 1, 2)),
        }
        ctx.compute(*[y for y, _ in results.values()])
        for y, expected in results.values():
            assert_rounds_to(y.numpy().T, expected, y.dtype, SUMS)
        np.testing.assert_array_equal(w.numpy().T, numbers_of)
        same = w.contiguous(ctx)
        ctx.compute(same)
        assert same.bytes() == w.bytes() == blocks(dtype).tobytes()


@pytest.mark.parametrize("dtype", [d for d in QUANTIZED if d not in DECODABLE], ids=str)
def test_a_type_without_numbers_is_refused_before_anything_runs(ctx, dtype):
    w = ctx.zeros(dtype, 256, 2)
    ids, x = ctx.from_ints([0]), leaf(ctx, np.ones((256, 2)))
    refused = [w.mulmat(ctx, x), w.rows(ctx, ids), w.cast(ctx, DType.F32), w.copy(ctx, x)]
    for y in refused:
        assert not ctx.backend.supports(y.op, [y.args[i] for i in y.op.operands])
    with pytest.raises(UnsupportedOpError, match=rf"mulmat: {dtype}\[256,2\] x f32\[256,2\]: {dtype} cannot"):
        ctx.compute(*refused)


def test_kept_numbers_of_weights_are_booked_with_the_graph(path):
    def kept(**options):
        with (
            backbay.gguf.open(path) as model,
            CpuRef(model, BackendParams(options=options, alloc_memory=False)) as backend,
        ):
            report = backend.memory()
            assert sum(m.size for m in report.cpu.weights) == sum(blocks(dtype).size for dtype in DECODABLE)
            return report.cpu.graph.size

    decoded = 4 * prod(SHAPE)
    assert kept(decoded_weights=0) == 0
    assert kept() == decoded * len(DECODABLE)
    assert kept(decoded_weights=3 * decoded - 1) == 2 * decoded


def test_no_decoded_numbers_are_kept_where_memory_is_limited(path):
    stored = sum(blocks(dtype).size for dtype in DECODABLE)
    with CpuRef(backbay.gguf.open(path), BackendParams(max_memory={"CPU:0": stored})) as backend:
        assert backend.memory().total() == stored


@pytest.mark.parametrize("wrong", [-1, 1.5, "much"])
def test_the_bytes_to_keep_are_a_whole_number(wrong):
    with pytest.raises(OptionError, match="option decoded_weights"):
        CpuRef(None, BackendParams(options={"decoded_weights": wrong}))


def test_rows_are_quantized_block_by_block(ctx):
    x = numbers(np.random.default_rng(1), (64, 3))
    for dtype in (d for d in DECODABLE if d.block_size <= 64):
        kind = GGMLQuantizationType(dtype.value)
        try:
            expected = quants.quantize(x.T.astype(np.float32), kind)
        except NotImplementedError:
            continue
        y = leaf(ctx, x, DType.F32, "stepped").cast(ctx, dtype)
        ctx.compute(y)
        assert y.bytes() == expected.tobytes()
