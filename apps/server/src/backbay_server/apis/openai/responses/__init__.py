"""Responses without state: a conversation in items, and its answer in typed events."""
