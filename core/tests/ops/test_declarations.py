"""Declarations: what an op is read from its rule, and what a table of kernels refuses."""

import inspect

import pytest

import backbay
from backbay import OPS, BackbayError, DType, KernelTable, Spec, ops
from backbay.ops.op_declaration import op

SECTION_4 = [
    "neg",
    "sqr",
    "sqrt",
    "exp",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "relu",
    "silu",
    "gelu",
    "gelu_erf",
    "quick_gelu",
    "swiglu",
    "softplus",
    "clamp",
    "scale",
    "fill",
    "cast",
    "add",
    "sub",
    "mul",
    "div",
    "mulmat",
    "mulmat_full_prec",
    "mulmat_id",
    "add_id",
    "softmax",
    "layer_norm",
    "rms_norm",
    "l2_norm",
    "sum_rows",
    "mean",
    "variance",
    "stddev",
    "cumsum",
    "top_k",
    "argsort",
    "reshape",
    "view",
    "permute",
    "contiguous",
    "slice",
    "chunk",
    "chunk_sections",
    "pad",
    "pad_ext",
    "stack",
    "repeat",
    "repeat_4d",
    "concat",
    "duplicate",
    "copy",
    "set",
    "set_rows",
    "rows",
    "conv2d",
    "conv3d",
    "conv1d_dw",
    "im2col",
    "avg_pool2d",
    "interpolate",
    "rope",
    "ssm_conv",
    "ssm_scan",
    "delta_rule",
    "diag",
    "tri",
    "solve_tri",
    "scaled_dot_product_attention",
]


def test_every_op_of_the_contract_is_declared_and_no_other():
    assert sorted(OPS) == sorted(SECTION_4)


@pytest.mark.parametrize("name", SECTION_4)
def test_every_op_is_documented_and_a_method_of_tensor(name):
    assert len(OPS[name].doc) > 10
    assert callable(getattr(backbay.Tensor, name))
    assert getattr(backbay.Tensor, name).__doc__ == OPS[name].doc


@pytest.mark.parametrize("name", SECTION_4)
def test_a_method_takes_the_parameters_of_its_op(name):
    declared = list(OPS[name].signature.parameters)
    traced = list(inspect.signature(getattr(backbay.Tensor, name)).parameters)
    assert traced == [declared[0], "ctx", *declared[1:]]


def test_sizes_operands_and_ids_are_read_from_the_declaration():
    op = OPS["set_rows"]
    assert [op.parameters[i].name for i in op.operands] == ["x", "src", "ids"]
    assert op.parameters[op.writes].name == "x" and op.parameters[op.ids].name == "ids" and op.among == (0, 1)
    assert [OPS["slice"].parameters[i].name for i in OPS["slice"].sizes] == ["low", "high"]
    assert [OPS["view"].parameters[i].name for i in OPS["view"].sizes] == ["offset", "shape", "strides"]


def test_a_kernel_with_other_parameters_fails_at_import_and_shows_both_signatures():
    kernel = KernelTable()
    with pytest.raises(BackbayError, match=r"gelu\(x, approximate\) does not match its op gelu\(x: .*up"):

        @kernel(ops.gelu)
        def gelu(x, approximate):
            return x


@pytest.mark.parametrize("kernel", [lambda x: x, lambda x, key, value, mask, scale: x, lambda *x: x])
def test_a_plain_mapping_of_kernels_is_checked_when_the_class_is_made(kernel):
    attention = ops.scaled_dot_product_attention
    with pytest.raises(BackbayError, match="does not match its op scaled_dot_product_attention"):
        type("Wrong", (backbay.KernelBackend,), {"kernels": {attention: kernel}})
    type("Right", (backbay.KernelBackend,), {"kernels": {attention: lambda q, k, v, mask, **named: q}})


def test_a_second_kernel_for_one_op_is_an_error():
    kernel = KernelTable()
    kernel(ops.neg)(lambda x: -x)
    with pytest.raises(BackbayError, match="two kernels for neg"):
        kernel(ops.neg)(lambda x: -x)


def test_an_op_is_declared_once():
    def neg(x: Spec) -> Spec:
        return x

    with pytest.raises(BackbayError, match="neg is declared twice"):
        op(neg)


def test_a_rule_can_be_asked_without_any_tensor():
    result = ops.mulmat.rule(Spec(DType.Q4_0, (64, 8)), Spec(DType.F32, (64, 3)))
    assert str(result) == "f32[8,3]"
