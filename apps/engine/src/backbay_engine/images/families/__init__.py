"""Families of models that see, a file each."""
