"""The suite's vocabulary: cases, scenarios, profiles, and the lab that opens backends for them."""
