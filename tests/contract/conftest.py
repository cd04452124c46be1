"""What several contracts are tried on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.service.cycling import World


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world for cycles, on each kind of database."""
    is_sqlite = request.param == "sqlite"
    made = World(f"sqlite:///{tmp_path}/service.db" if is_sqlite else request.getfixturevalue("postgres"))
    yield made
    made.close()
