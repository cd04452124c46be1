"""Keeping compacted tables whole and small: checks, repairs, vacuums and rollbacks."""
