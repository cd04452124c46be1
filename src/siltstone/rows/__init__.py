"""Merging rows by key: pure steps on Arrow tables and compacted files, without a log or a catalog."""
