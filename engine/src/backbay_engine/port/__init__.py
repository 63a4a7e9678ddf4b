"""Engines: where the steps of a model run, in this process or in another."""
