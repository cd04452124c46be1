"""Results as text: a renderer for each type of result, which yields lines and tables."""

from siltstone.cli.render import checks, cycles, rows, tables
from siltstone.cli.render.parts import render, show

__all__ = ["checks", "cycles", "render", "rows", "show", "tables"]
