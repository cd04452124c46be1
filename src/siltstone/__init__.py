"""Siltstone compacts streams of change deltas into query-ready tables and documents, on Spark."""

from siltstone._version import __version__

__all__ = ["__version__"]
