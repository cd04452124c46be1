"""Packages that only some users need: what to install where one of them is missing."""

import importlib.util

from siltstone.errors import NotInstalledError


def require_packages(purpose: str, packages: tuple[str, ...], install: str) -> None:
    """Raise NotInstalledError with the line to run where a package is not installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise NotInstalledError(f"{purpose} needs {', '.join(missing)}: run pip install '{install}'")
