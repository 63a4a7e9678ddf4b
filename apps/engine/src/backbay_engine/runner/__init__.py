"""Requests in progress: jobs share steps, and give answers."""
