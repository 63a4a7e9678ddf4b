"""The scenarios, tests beyond single calls: graphs, lives, memory, misuse; importing this package declares them."""

from . import (
    blocks,
    experts,
    graphs,
    halves,
    leaves,
    lives,
    long,
    memory,
    misuse,
    one_weight,
    process,
    settings,
    threads,
    weights,
)

SUBJECTS = (
    *(blocks, experts, graphs, halves, leaves, lives),
    *(long, memory, misuse, one_weight, process, settings, threads, weights),
)
