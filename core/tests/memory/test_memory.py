"""Memory: the report, limits, what fails and how it is told."""

import json
import logging
import threading

import numpy as np
import pytest

import backbay
from backbay import (
    AllocationStatus,
    BackendMemory,
    BackendParams,
    DeviceInfo,
    DeviceMemory,
    DType,
    Memory,
    NoMemoryError,
)


@pytest.fixture
def model(tmp_path):
    """A file of two blocks with weights on the host, in the blocks and in the output layer."""
    import gguf

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    rng = np.random.default_rng(0)
    for name, shape in {
        "token_embd.weight": (100, 32),
        "blk.0.attn_q.weight": (32, 32),
        "blk.1.attn_q.weight": (32, 32),
        "blk.1.ffn_up.weight": (64, 32),
        "output_norm.weight": (32,),
        "output.weight": (100, 32),
    }.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def sizes(entries):
    return [memory.size for memory in entries]


def test_the_report_says_where_every_weight_is(model):
    with backbay.open(model, backend="cpu_ref") as backend:
        report = backend.memory()
        assert report.input_weights == Memory(12800, AllocationStatus.Allocated)
        assert sizes(report.cpu.weights) == [4096, 4096 + 8192, 128 + 12800]
        assert report.total() == report.allocated() == sum(t.nbytes for t in backend.model.tensors.values())


def test_a_cache_is_counted_with_its_layer_and_inputs_with_the_graph(model):
    with backbay.open(model, backend="cpu_ref") as backend:
        ctx = backend.new_context()
        ctx.layer(1).zeros(DType.F16, 64, 10)
        ctx.input().from_floats(np.ones(8))
        report = backend.memory()
        assert sizes(report.cpu.cache) == [0, 1280, 0]
        assert report.cpu.graph.size == 32


def test_a_dry_run_reports_what_the_real_one_allocates(model):
    def run(alloc):
        with backbay.open(model, backend="cpu_ref", params=BackendParams(alloc_memory=alloc)) as backend:
            ctx = backend.new_context()
            cache = ctx.layer(0).zeros(DType.F32, 32, 16)
            x = ctx.input().empty(DType.F32, 32, 4)
            y = backend.get("blk.1.ffn_up.weight").mulmat(ctx, x).silu(ctx)
            ctx.forward(x.copy(ctx, cache.slice(ctx, 1, 0, 4)), y).reserve()
            return backend.memory()

    dry, real = run(alloc=False), run(alloc=True)
    assert dry.total() == real.total() == real.allocated() and dry.allocated() == 0
    assert [(d, p, n, m.size) for d, p, n, m in dry.rows()] == [
        (d, p, n, m.size) for d, p, n, m in real.rows()
    ]


@pytest.mark.fault(
    "the weights exceed the limit of a device",
    "NoMemoryError when the model is opened; its report marks the entry",
)
def test_weights_beyond_the_limit_fail_at_open_and_name_what_did_not_fit(model):
    with pytest.raises(NoMemoryError, match=r"weights of layer \d on CPU:0.* left of 15.0 KiB") as caught:
        backbay.open(model, backend="cpu_ref", params=BackendParams(max_memory={"CPU:0": 15 * 1024}))
    failed = [row for row in caught.value.memory.rows() if row[3].status is AllocationStatus.Failed]
    assert len(failed) == 1 and failed[0][1] == "weights"


def limited(nbytes):
    return backbay.open(None, backend="cpu_ref", params=BackendParams(max_memory={"CPU:0": nbytes}))


def test_a_leaf_beyond_the_limit_fails_and_the_rest_goes_on():
    with limited(10_000) as backend:
        ctx = backend.new_context()
        kept = ctx.layer(0).zeros(DType.F32, 1000)
        with pytest.raises(
            NoMemoryError, match=r"no memory for 7\.8 KiB of cache of layer 3 on CPU:0"
        ) as caught:
            ctx.layer(3).zeros(DType.F32, 2000)
        assert caught.value.memory.cpu.cache[3] == Memory(8000, AllocationStatus.Failed)
        assert caught.value.memory.cpu.cache[0] == Memory(4000, AllocationStatus.Allocated)
        assert backend.memory().total() == 4000
        assert kept.neg(ctx).shape == (1000,)


@pytest.mark.fault(
    "a graph exceeds the limit of a device", "NoMemoryError before anything runs; the backend goes on"
)
def test_a_graph_beyond_the_limit_fails_before_it_runs_and_frees_everything():
    with limited(10_000) as backend:
        ctx = backend.new_context()
        x = ctx.from_floats(np.ones(1000))
        y = x.exp(ctx).add(ctx, x.neg(ctx))
        with pytest.raises(NoMemoryError, match="graph on CPU:0") as caught:
            ctx.compute(y)
        assert caught.value.memory.cpu.graph.status is AllocationStatus.Failed
        assert backend.memory().total() == 4000 and ctx.counters.runs == 0
        small = backend.new_context()
        z = small.from_floats([1.0]).exp(small)
        small.compute(z)
        assert z.floats()[0] == pytest.approx(np.e)


class Tiny(backbay.backends()["cpu_ref"].load()):
    """On a machine that has 9 KiB of memory, for weights in a file of any size."""

    def devices(self):
        return [DeviceInfo("CPU:0", "CPU", total_memory=9 * 1024, free_memory=5000)]


def test_more_than_a_device_has_is_refused_before_the_system_promises_it(model):
    with backbay.open(model, backend=Tiny) as backend:  # whose weights are larger
        assert backend.memory().total() > 9 * 1024
        ctx = backend.new_context()
        ctx.layer(0).zeros(DType.F32, 2000)
        with pytest.raises(
            NoMemoryError, match=r"7\.8 KiB of graph on CPU:0: the device has 9\.0 KiB in all"
        ):
            ctx.zeros(DType.F32, 2000)
    with backbay.open(model, backend=Tiny, params=BackendParams(alloc_memory=False)) as backend:
        backend.new_context().zeros(DType.F32, 4000)  # may be asked what it would be


def test_memory_that_was_not_booked_is_told_with_what_there_is():
    with (
        backbay.open(None, backend=Tiny) as backend,
        pytest.raises(NoMemoryError, match=r"no memory for graph on CPU:0: no 8 GiB; 4\.9 KiB are free"),
    ):
        backend.refuse_memory(MemoryError("no 8 GiB"))


@pytest.mark.fault("the system refuses memory that was booked", "NoMemoryError with the report")
def test_what_the_system_refuses_is_no_memory_too():
    reference = backbay.backends()["cpu_ref"].load()

    class Refuses(reference):
        def allocate(self, spec, placement):
            if spec.nbytes > 5000:
                raise MemoryError("the system says no")
            return super().allocate(spec, placement)

    with backbay.open(None, backend=Refuses) as backend:
        ctx = backend.new_context()
        with pytest.raises(NoMemoryError, match="the system says no"):
            ctx.layer(0).empty(DType.F32, 2000)
        assert backend.memory().total() == 0


@pytest.mark.parametrize(
    "params",
    [
        {"max_memory": {"CPU:0": -1}},
        {"num_threads": 0},
        {"num_threads": "2"},
        {"num_threads": 1025},
        {"flash_attention": "maybe"},
    ],
)
def test_parameters_are_checked(params):
    with pytest.raises(backbay.OptionError, match=f"{next(iter(params))}.* must be"):
        BackendParams(**params)


@pytest.mark.parametrize("count", [-1, 1 << 16, (1 << 31) - 1])
def test_a_number_of_layers_that_cannot_be_is_refused(tmp_path, count):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_int32("llama.block_count", count)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    with pytest.raises(backbay.ModelFileError, match=rf"block_count in \[0, 65536\), found {count}"):
        backbay.open(tmp_path / "model.gguf", backend="cpu_ref")
    with backbay.open(None, backend="cpu_ref") as backend, pytest.raises(backbay.ShapeError, match="layer"):
        backend.new_context().layer(count)


@pytest.mark.fault("a kernel finds no memory", "NoMemoryError with the report")
def test_a_kernel_that_finds_no_memory_says_so_with_the_report():
    reference = backbay.backends()["cpu_ref"].load()

    class Starved(reference):
        def run_node(self, node, arrays):
            raise MemoryError("unable to allocate")

    with backbay.open(None, backend=Starved) as backend:
        ctx = backend.new_context()
        y = ctx.from_floats([1.0]).neg(ctx)
        with pytest.raises(NoMemoryError, match="graph on CPU:0: unable to allocate") as caught:
            ctx.compute(y)
        assert caught.value.memory.cpu.graph.status is AllocationStatus.Failed


def test_an_unknown_device_is_named():
    for params in (
        BackendParams(max_memory={"CUDA:0": 1}),
        BackendParams(gpu_layers=backbay.GPULayersList([backbay.GPULayers("CUDA:0", [0])])),
    ):
        with pytest.raises(backbay.OptionError, match="has no device 'CUDA:0'; it has CPU:0"):
            backbay.open(None, backend="cpu_ref", params=params)


def test_the_report_reads_as_a_table_as_data_and_as_records(model, caplog):
    with backbay.open(model, backend="cpu_ref") as backend:
        report = backend.memory()
    table = str(report)
    assert table.splitlines()[0].split() == ["device", "part", "layers", "size", "status"]
    assert "CPU:0      weights        0..2" in table and table.splitlines()[-1].startswith("total")
    data = json.loads(json.dumps(report.as_dict()))
    assert data["total"] == report.total() and data["cpu"]["weights"][0] == {
        "size": 4096,
        "status": "allocated",
    }
    with caplog.at_level(logging.INFO):
        report.log(logging.getLogger("memory"))
    *lines, total = caplog.records
    assert [r.message for r in lines] == [
        "CPU:0: 12.5 KiB of input weights, allocated",
        "CPU:0: 28.6 KiB of weights of layers 0..2, allocated",
    ]
    assert lines[1].memory == {
        "device": "CPU:0",
        "part": "weights",
        "layers": "0..2",
        "size": sum(layer.size for layer in report.cpu.weights),
        "status": "allocated",
        "hardware_id": None,
    }
    assert total.memory == {"total": report.total()} and total.message.startswith("total: ")
    assert str(Memory(5, AllocationStatus.Failed)) == "5F"


def test_records_of_an_encoder_on_a_device_of_its_own_have_its_address(caplog):
    cpu = DeviceMemory("a CPU", "CPU:0")
    gpu = DeviceMemory("a GPU", "CUDA:0", graph=Memory(5), hardware_id="0000:c1:00.0")
    encoder = BackendMemory(Memory(), cpu, (gpu,))
    with caplog.at_level(logging.INFO):
        BackendMemory(Memory(), cpu, encoder=encoder).log(logging.getLogger("memory"))
    assert caplog.records[0].memory["part"] == "encoder graph"
    assert caplog.records[0].memory["hardware_id"] == "0000:c1:00.0"


def test_loading_reports_progress_and_weights_hold_data_only_then(model):
    with backbay.open(model, backend="cpu_ref") as backend:
        w = backend.get("blk.0.attn_q.weight")
        assert backend.get("nothing") is None and backend.get("blk.0.attn_q.weight") is w
        ctx = backend.new_context()
        y = w.mulmat(ctx, ctx.from_floats(np.eye(32)))
        ctx.forward(y).reserve()
        for use in (w.floats, lambda: ctx.compute(y)):
            with pytest.raises(backbay.NotComputedError, match=r"backend.load\(\)"):
                use()
        seen, cancel = [], threading.Event()
        cancel.set()
        with pytest.raises(backbay.CancelledError):
            backend.load(cancel=cancel)
        backend.load(progress=seen.append)
        assert seen[0] == 0.0 and seen[-1] == 1.0 and seen == sorted(seen)
        ctx.compute(y)
        assert (y.numpy() == w.numpy().T).all()
        with pytest.raises(backbay.BackbayError, match="read-only"):
            w.from_floats(w.floats())
        assert backend.config.int("block_count") == 2 and backend.config.architecture == "llama"
