"""Logs of strings on a local folder and in memory, with a clock that tests set."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from siltstone.log import CompactibleLog, JsonCodec
from siltstone.objects import Objects, open_objects

_numbers = itertools.count()
OpenLog = Callable[..., CompactibleLog[object]]


@pytest.fixture(params=["local", "memory"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return open_objects(tmp_path if request.param == "local" else f"memory://log-tests-{next(_numbers)}")


@pytest.fixture
def open_log(objects: Objects) -> OpenLog:
    """Open the log in folder `log`, anew at each call, with interval 3 and immediate clean-up unless told otherwise."""

    def opened(*, k: int = 3, m: int = 100, delay: int = 0, **options: object) -> CompactibleLog[object]:
        chosen = {"default_interval": k, "min_batches_to_retain": m, "cleanup_delay_ms": delay, **options}
        return CompactibleLog(objects, "log", JsonCodec(), **chosen)  # type: ignore[arg-type]

    return opened


def names(objects: Objects, folder: str = "log") -> list[str]:
    """All file names in the log's folder, batches or not."""
    return sorted(found.path.rpartition("/")[2] for found in objects.list_objects(folder))


def spelled(files: str) -> list[str]:
    """`"0 1 2c"` as file names."""
    return sorted(name.replace("c", ".compact") for name in files.split())
