"""What a table is at one moment, and its rows."""
