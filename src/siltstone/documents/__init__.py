"""Documents: JSON values resolved from immutable deltas, and compacted without losing anything."""
