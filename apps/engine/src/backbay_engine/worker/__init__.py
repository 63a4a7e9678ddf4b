"""A model in a process of its own: what kills the process is an error of its requests, and the host lives."""
