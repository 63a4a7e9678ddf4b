"""Running the suite: selection, worker processes, shrinking, replay."""
