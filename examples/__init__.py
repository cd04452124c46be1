"""Programs that show Siltstone at work."""
