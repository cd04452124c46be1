"""Tools for those who work on Siltstone."""
