"""Layers on GPUs: the text form, the sum, the hash, and what older settings become."""

import math
import subprocess
import sys

import numpy as np
import pytest

from backbay import GPULayers, GPULayersList, OptionError, assign_layers


def test_the_text_form():
    assert str(GPULayers("CUDA:0", [2, 0, 1])) == "ID:CUDA:0 Layers:3(0..2)"
    assert str(GPULayers("CUDA:0", [0, 2, 5])) == "ID:CUDA:0 Layers:3[0 2 5]"
    assert str(GPULayers("CUDA:0", [])) == ""
    both = GPULayersList([GPULayers("CUDA:0", [0, 1]), GPULayers("CUDA:1", [2])])
    assert str(both) == "3[ID:CUDA:0 Layers:2(0..1) ID:CUDA:1 Layers:1(2..2)]"
    assert str(GPULayersList()) == "[]" and both.sum() == 3


def test_the_hash_is_stable_across_processes_and_tells_lists_apart():
    code = "from backbay import *; print(GPULayersList([GPULayers('CUDA:0', [0, 1])]).hash())"
    runs = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout for _ in range(2)
    }
    assert len(runs) == 1
    lists = [
        GPULayersList(),
        GPULayersList([GPULayers("CUDA:0", [0, 1])]),
        GPULayersList([GPULayers("CUDA:1", [0, 1])]),
        GPULayersList([GPULayers("CUDA:0", [0]), GPULayers("CUDA:1", [1])]),
    ]
    hashes = [each.hash() for each in lists]
    assert len(set(hashes)) == 4 and all(0 <= h < 1 << 64 for h in hashes)
    assert int(runs.pop()) == hashes[1]
    assert GPULayersList([GPULayers("X:0", []), *lists[1]]).hash() == hashes[1]


TEN = [100] * 10


def layers(assigned):
    return {gpu.id: list(gpu.layers) for gpu in assigned}


def test_without_a_number_all_that_fits_goes_to_the_gpu_from_the_output_down():
    assert layers(assign_layers(TEN, [("G:0", 350)])) == {"G:0": [7, 8, 9]}
    assert layers(assign_layers(TEN, [("G:0", 5000)])) == {"G:0": list(range(10))}
    assert layers(assign_layers(TEN, [("G:0", 50)])) == {}
    assert layers(assign_layers(TEN, [])) == {}


def test_a_number_takes_the_last_layers_even_if_they_do_not_fit():
    assert layers(assign_layers(TEN, [("G:0", 50)], num_gpu_layers=3)) == {"G:0": [7, 8, 9]}
    assert layers(assign_layers(TEN, [("G:0", 5000)], num_gpu_layers=0)) == {}
    assert layers(assign_layers(TEN, [("G:0", 5000)], num_gpu_layers=99)) == {"G:0": list(range(10))}


def test_the_main_gpu_holds_the_output():
    gpus = [("G:0", 300), ("G:1", 300)]
    assert layers(assign_layers(TEN, gpus)) == {"G:1": [4, 5, 6], "G:0": [7, 8, 9]}
    assert layers(assign_layers(TEN, gpus, main_gpu=1)) == {"G:0": [4, 5, 6], "G:1": [7, 8, 9]}


def test_a_split_gives_each_its_share():
    gpus = [("G:0", 5000), ("G:1", 5000)]
    split = assign_layers(TEN, gpus, num_gpu_layers=8, tensor_split=[3, 1], main_gpu=1)
    assert layers(split) == {"G:0": [2, 3, 4, 5, 6, 7], "G:1": [8, 9]}


def test_an_array_is_a_split_as_a_list_is():
    gpus = [("G:0", 5000), ("G:1", 5000)]
    split = assign_layers(TEN, gpus, tensor_split=np.array([1, 4], np.float32))
    assert layers(split) == {"G:1": [0, 1, 2, 3, 4, 5, 6, 7], "G:0": [8, 9]}


@pytest.mark.parametrize("wrong", [[1], [0, 0], [-1, 2], [math.nan, 1], [math.inf, 1], [1e308, 1e308]])
def test_shares_that_cannot_be_are_refused(wrong):
    with pytest.raises(OptionError, match="tensor_split"):
        assign_layers(TEN, [("G:0", 1), ("G:1", 1)], tensor_split=wrong)


def test_a_gpu_that_is_not_there_holds_no_output():
    with pytest.raises(OptionError, match="main_gpu"):
        assign_layers(TEN, [("G:0", 1), ("G:1", 1)], main_gpu=2)
