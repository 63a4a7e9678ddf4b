"""The checked graph that a backend compiles: its order, its composites, its sizes."""
