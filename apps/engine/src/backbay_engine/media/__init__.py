"""From pictures and sound in a prompt to the rows that enter its text: encoders, the store of rows, and places."""
