"""Encoders: a vector for each text."""
