"""Running the suite: selection, worker processes, time limits, replay of failures."""
