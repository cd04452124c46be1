"""Rows from files, and rows to files: CSV, JSON lines and Parquet."""
