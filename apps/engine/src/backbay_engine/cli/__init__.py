"""The commands that the engine adds to `backbay`."""
