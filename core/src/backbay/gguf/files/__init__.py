"""The files of a model: one or several, the copies of their weights, and matrices that are stacked."""
