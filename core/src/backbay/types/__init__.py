"""Values of the contract: dtypes, specs, placements, layers, parameters."""
