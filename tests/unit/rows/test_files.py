import threading
from types import SimpleNamespace
from typing import Any

import pytest

from siltstone.model.buckets import CompactedFile
from siltstone.rows import files
from siltstone.rows.files import KnownFiles, StoredFile
from tests.waiting import LIMIT_SECONDS


def test_a_file_is_opened_while_another_one_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    is_opening, may_go_on = threading.Event(), threading.Event()

    def open_parquet(root: str, uri: str, **options: object) -> Any:
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


def test_a_footer_is_read_once_while_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def open_parquet(root: str, uri: str, *, footer: Any) -> Any:
        if footer is None:
            read.append(uri)
        return SimpleNamespace(metadata=footer or SimpleNamespace(num_rows=1, serialized_size=10, uri=uri))

    monkeypatch.setattr(files, "open_parquet", open_parquet)
    monkeypatch.setattr(files, "_FOOTERS_BYTES", 25)
    known = KnownFiles()
    for uri in ("a", "b", "a", "c", "a", "b"):
        stored = StoredFile("memory://x", CompactedFile(uri=uri, record_count=1, content_length=1), known)
        assert stored.parquet.metadata.uri == uri
    # When c came, b had to go.
    assert read == ["a", "b", "c", "b"]
