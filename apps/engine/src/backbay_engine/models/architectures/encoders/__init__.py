"""Encoders: a vector for each text, and encoders with a decoder."""
