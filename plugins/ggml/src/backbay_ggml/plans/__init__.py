"""Compiled graphs: on the CPU alone, or over several devices, and the memory that plans share."""
