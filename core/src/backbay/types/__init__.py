"""Values of the contract: dtypes, specs, placements, layers, parameters; plain data that any room may use."""
