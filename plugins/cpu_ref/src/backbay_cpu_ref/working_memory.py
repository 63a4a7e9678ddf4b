"""The working memory of kernels: the bytes of the arrays that a kernel holds at one time, beside its result."""

from __future__ import annotations

from backbay import Node, ops

from .ops.attention import tokens_at_a_time

DOUBLE = 8  # bytes of a float64
SOME = 3  # most kernels hold no more arrays of their largest operand's size


def working_memory(node: Node) -> int:
    """The bytes that the kernel of a node holds beside its result."""
    assert node.op is not None
    if node.op in (ops.mulmat, ops.mulmat_full_prec) or node.op.writes is not None:
        return 0
    if node.op is ops.mulmat_id:
        return DOUBLE * (_chosen(node) + node.size)
    if node.op is ops.scaled_dot_product_attention:
        return _attention(node)
    if node.op.moves:
        return node.nbytes
    return DOUBLE * (SOME * max([node.size, *[operand.size for operand in node.operands]]) + _windows(node))


def _chosen(node: Node) -> int:
    """The elements of the rows that all experts together multiply."""
    x, ids = node.args[1], node.args[2]
    return int(x.dim(0) * ids.size)


def _windows(node: Node) -> int:
    """The elements of the overlapping windows of an image, in the order of the image and in that of a product."""
    if node.op in (ops.conv2d, ops.conv3d):
        weight = node.args[0]
        kernels = weight.dim(3) // (node.args[2] if node.op is ops.conv3d else 1)
        return 2 * (node.size // max(1, kernels)) * (weight.size // max(1, kernels))
    if node.op is ops.conv1d_dw:
        return int(2 * node.size * node.args[1].dim(0))
    if node.op is ops.avg_pool2d:
        x, k, s = node.args[:3]
        return int(x.size * k // s)
    return 0


def _attention(node: Node) -> int:
    """Scores, before and after each step of the softmax, and a mask of the same shape."""
    query, key = node.args[0], node.args[1]
    each = query.dim(1) * query.dim(3) * key.dim(2)  # scores of a token
    return 4 * DOUBLE * each * min(query.dim(2), tokens_at_a_time(each)) + DOUBLE * node.size
