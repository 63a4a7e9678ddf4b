"""The cases, one module for each family of ops; importing this package declares them all."""

from . import (
    attention,
    binary,
    delta_rule,
    elementwise,
    given,
    index,
    linear,
    matrix,
    norm,
    order,
    reduce,
    sequence,
    shape,
    spatial,
    write,
)

FAMILIES = (
    *(attention, binary, delta_rule, elementwise, given, index, linear, matrix, norm),
    *(order, reduce, sequence, shape, spatial, write),
)
