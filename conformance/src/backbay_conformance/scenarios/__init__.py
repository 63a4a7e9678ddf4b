"""The scenarios, which try more than single calls: graphs, lives, memory, misuse; importing this declares them all."""

from . import (
    blocks,
    composites,
    graphs,
    halves,
    leaves,
    lives,
    long,
    memory,
    misuse,
    settings,
    threads,
    weights,
)

SUBJECTS = (
    *(blocks, composites, graphs, halves, leaves, lives),
    *(long, memory, misuse, settings, threads, weights),
)
