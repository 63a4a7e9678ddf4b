"""The port of a model: requests, questions and facts, wherever its steps run."""
