"""The checked graph that a backend compiles, its sizes, and the compiled plan."""
