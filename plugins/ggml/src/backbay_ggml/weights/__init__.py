"""The weights of a model: on the CPU, where some are rearranged, and on other devices."""
