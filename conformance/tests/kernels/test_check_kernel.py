"""`check_kernel`: right kernels pass, and wrong ones are shown by a small call and a program."""

from __future__ import annotations

import kernels_to_check as kernels
import numpy as np
import pytest

from backbay import BackbayError, DType, Precision
from backbay_conformance import CASES, HostArray, SelectionError, check_kernel
from backbay_conformance.kernels.host_array import on_host
from backbay_selftest import reference

KERNELS = reference().kernels
COMPUTED = [op for op in dict.fromkeys(case.op for case in CASES.values()) if op in KERNELS]


@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_the_kernels_of_the_reference_pass(op) -> None:
    check_kernel(KERNELS[op], op, precision="f64", size="tiny")


@pytest.mark.parametrize(
    "settings",
    [{"size": "smoke"}, {"native": True, "size": "smoke"}, {"native": kernels.copied, "dtypes": "f32,f16"}],
)
def test_a_right_kernel_passes_on_every_kind_of_array(settings) -> None:
    check_kernel(kernels.right, "rms_norm", **settings)


@pytest.mark.parametrize("kernel", [kernels.eps_outside, kernels.eps_at_most_five])
def test_a_failure_has_a_small_call_an_element_its_bound_and_a_program(kernel) -> None:
    with pytest.raises(AssertionError, match=r"at \(.*\) expected .* within .*, got ") as failed:
        check_kernel(kernel, "rms_norm")
    call, _, *rest = str(failed.value).splitlines()
    assert call.startswith("rms_norm(f32[")
    printed: list[tuple] = []
    program = "\n".join(rest[rest.index("") :])
    exec(program, {"print": lambda *values: printed.append(values)})
    (result,), (_, expected, _, within) = printed
    assert (np.abs(result - expected) > within).any()


@pytest.mark.parametrize(
    ("kernel", "check"),
    [
        (kernels.narrow_sums, "bound"),
        (kernels.tail_left_out, "bound"),
        (kernels.stride_ignored, "bound"),
        (kernels.operand_changed, "inputs"),
        (kernels.wide_result, "dtype"),
    ],
)
def test_faults_of_a_kernel_over_stored_elements_are_noticed(kernel, check) -> None:
    with pytest.raises(AssertionError, match=f"\n  {check}: "):
        check_kernel(kernel, "rms_norm", native=True)


def test_an_ignored_offset_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"(?s)view\(.*HostArray"):
        check_kernel(kernels.right, "rms_norm", native=kernels.offset_ignored, dtypes="f32,f16")


def test_a_declared_precision_widens_the_bounds() -> None:
    sums = Precision(DType.F16, DType.F16)
    check_kernel(kernels.narrow_sums, "rms_norm", precision=sums, native=True, dtypes=["f16"], size="smoke")


def test_only_the_wanted_dtypes_come() -> None:
    seen = set()

    def noting(x, weight=None, eps=1e-5):
        seen.update({x.dtype} if weight is None else {x.dtype, weight.dtype})
        return kernels.right(x, weight, eps)

    check_kernel(noting, "rms_norm", native=True, dtypes=[DType.F16])
    assert seen == {np.dtype(np.float16)}


def test_a_crash_is_a_failed_call_if_the_kernel_is_isolated() -> None:
    flushing = Precision(DType.F32, DType.F32, flushes_subnormals=True)
    settings = {"native": kernels.copied, "dtypes": "f32", "size": "smoke", "precision": flushing}
    check_kernel(kernels.right, "rms_norm", isolate=True, **settings)
    with pytest.raises(AssertionError, match=r"rms_norm\(f32.*\n  crash: the process ended with .*3"):
        check_kernel(kernels.ends_its_process, "rms_norm", isolate=True, size="tiny")


def test_mistakes_are_named() -> None:
    with pytest.raises(BackbayError, match="cannot be imported by another process"):
        check_kernel(lambda x: -x, "neg", isolate=True)
    with pytest.raises(SelectionError, match="no op 'rms_nrom'; nearest: 'rms_norm'"):
        check_kernel(kernels.right, "rms_nrom")
    with pytest.raises(SelectionError, match="permute has no kernel: it is a view"):
        check_kernel(kernels.right, "permute")
    with pytest.raises(BackbayError, match=r"other_parameters\(x, eps\) does not match its op rms_norm\(x"):
        check_kernel(kernels.other_parameters, "rms_norm")
    with pytest.raises(BackbayError, match="no dtype 'f31'; nearest: 'f32'"):
        check_kernel(kernels.right, "rms_norm", dtypes="f31")
    with pytest.raises(BackbayError, match="sums are in one of f64, f32, f16, bf16, not q8_0"):
        check_kernel(kernels.right, "rms_norm", precision="q8_0")
    with pytest.raises(SelectionError, match="no size 'huge'; there are tiny, smoke"):
        check_kernel(kernels.right, "rms_norm", size="huge")
    with pytest.raises(SelectionError, match="no call of rms_norm has a first operand of q4_0"):
        check_kernel(kernels.right, "rms_norm", dtypes="q4_0", size="tiny")


def test_arrays_go_by_dlpack_with_strides_and_offset_in_bfloat16_too() -> None:
    whole = np.arange(24, dtype=np.uint16)
    operand = HostArray(whole[3:23].reshape(4, 5)[:, 1:4], whole, bfloat16=True)
    assert (operand.shape, operand.strides, operand.offset) == ((4, 3), (5, 1), 4)
    assert (on_host(operand) == operand.array).all()
    assert np.shares_memory(on_host(operand.storage), whole)
    with pytest.raises(RuntimeError, match="Unsupported dtype"):
        np.from_dlpack(operand)  # it is bfloat16, which NumPy lacks
