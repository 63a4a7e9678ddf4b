"""The parts of the suite: cases, scenarios, profiles, and the lab that opens backends."""
