"""Backends to come: the repository of a new one, and the kernels that it needs next."""

from .kernels_needed import next_kernels as next_kernels
