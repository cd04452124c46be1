from collections.abc import Iterator
from pathlib import Path

import pytest

from siltstone.log.commit import forget_logs
from tests.unit.web.serving import Service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    yield made
    made.database.close()
    forget_logs(made.root)
