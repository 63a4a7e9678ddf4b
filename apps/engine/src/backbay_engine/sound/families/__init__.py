"""Families of encoders of sound, by the type of their projectors."""
