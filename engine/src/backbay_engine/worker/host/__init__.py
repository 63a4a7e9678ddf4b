"""The host's side of a worker: its process, the requests sent to it, and what happens when it dies."""
