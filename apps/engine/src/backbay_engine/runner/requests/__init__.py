"""Requests: their options, the jobs that they become, and their answers."""
