"""The contract's value types: dtypes, specs, placements, layers, parameters."""
