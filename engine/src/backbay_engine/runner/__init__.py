"""Many requests at once over one model: slots, batches, and the loop that runs them."""
