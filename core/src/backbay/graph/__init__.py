"""The checked graph that a backend compiles, its symbolic sizes, and the interface of plans."""
