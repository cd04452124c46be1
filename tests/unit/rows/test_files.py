import threading
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.model.buckets import CompactedFile
from siltstone.rows import files
from siltstone.rows.files import StoredFile
from tests.waiting import LIMIT_SECONDS


def test_a_file_is_opened_while_another_one_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    is_opening, may_go_on = threading.Event(), threading.Event()

    def open_parquet(root: str, uri: str) -> Any:
        if uri == "slow":
            is_opening.set()
            assert may_go_on.wait(LIMIT_SECONDS)
        return SimpleNamespace(metadata=SimpleNamespace(num_rows=1))

    monkeypatch.setattr(files, "open_parquet", open_parquet)
    slow, quick = (
        StoredFile("memory://x", CompactedFile(uri=uri, record_count=1, content_length=1)) for uri in ("slow", "quick")
    )
    reader = threading.Thread(target=lambda: slow.parquet)
    reader.start()
    assert is_opening.wait(LIMIT_SECONDS)
    other = threading.Thread(target=lambda: quick.parquet)
    other.start()
    other.join(LIMIT_SECONDS / 10)
    is_alive = other.is_alive()
    may_go_on.set()
    reader.join()
    other.join()
    assert not is_alive
