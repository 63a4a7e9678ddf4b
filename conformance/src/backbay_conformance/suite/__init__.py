"""What the suite consists of: cases, scenarios, their profiles, and the lab that they are tried in."""
