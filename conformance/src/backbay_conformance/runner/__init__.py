"""Running the suite: selection, worker processes, smaller failures, replay."""
