"""Processes: forks of the host, helpers that it starts, and trials of native libraries in a child."""
