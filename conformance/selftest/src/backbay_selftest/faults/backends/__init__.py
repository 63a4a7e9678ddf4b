"""Backends that break a promise over their life: claims, memory, and what a life leaves behind."""
