"""Memory reports: what is booked on each device, and what the host has."""
