"""Catalog: tables by name, over storage."""
