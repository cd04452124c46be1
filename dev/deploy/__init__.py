"""Bringing a workspace to where it runs."""
