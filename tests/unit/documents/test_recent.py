"""Deltas that wait: which files a read opens, and that it is right whatever the process knew before."""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

import siltstone
from siltstone.documents import commit, recent
from siltstone.documents.read import snapshot_of
from siltstone.model import Delta, ManifestEntry
from siltstone.storage.parquet import read_data_file
from tests.unit.documents.tables import ROOMY, Written, make


@pytest.fixture
def written(local_root: str) -> Written:
    return make(local_root)


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files of deltas that were opened by a process which knows of none."""
    files: list[str] = []

    def counted(root: str, file: ManifestEntry, *columns: Sequence[str]) -> pa.Table:
        files.append(file.uri)
        return read_data_file(root, file, *columns)

    monkeypatch.setattr(recent, "read_data_file", counted)
    start_anew(monkeypatch)
    return files


def start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "recent_deltas", recent.RecentDeltas())


def known(docs: siltstone.DocumentTable) -> int:
    """How many deltas of a table this process knows."""
    folder = snapshot_of(docs.name, root=docs.lake.root).folder
    return len(recent.recent_deltas._waiting(docs.lake.root, folder)._known)


def test_a_process_opens_the_files_of_the_documents_that_it_reads(
    written: Written, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        written.write(number + 1, f"r{number % 3}", f'{{..,"n{number}":1}}')
    opened.clear()
    start_anew(monkeypatch)
    assert written.docs.get("nobody")["~version"] == 0
    assert opened == []
    for _ in range(3):
        assert written.docs.get("r1") == written.expected("r1")
    assert len(opened) == 2


def test_only_what_came_since_is_looked_at(
    written: Written, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[int] = []
    add = recent._WaitingDeltas._add

    def counted(self: recent._WaitingDeltas, root: str, delta: Delta, kept: recent._KeptFiles) -> None:
        added.append(delta.stream_position)
        add(self, root, delta, kept)

    monkeypatch.setattr(recent._WaitingDeltas, "_add", counted)
    for number in range(1, 8):
        written.docs.update("r", f'{{..,"n{number}":1}}')
        assert written.docs.get("r")["~version"] == number
    assert added == list(range(1, 8))


@pytest.mark.parametrize("are_small", [True, False])
def test_deltas_that_do_not_name_their_keys_are_read_as_well(
    written: Written, monkeypatch: pytest.MonkeyPatch, are_small: bool
) -> None:
    monkeypatch.setattr(commit, "list_keys", lambda deltas, keys: None)
    if not are_small:
        monkeypatch.setattr(recent, "_SMALL_FILE_BYTES", 0)
    for number in range(6):
        written.write(number + 1, f"r{number % 3}", f'{{..,"n{number}":1}}')
    written.check(["nobody"])
    written.write(7, "r1", "~")
    written.check(["nobody"])
    written.compact(40)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_delta_of_many_documents_names_none_and_is_found(
    written: Written, monkeypatch: pytest.MonkeyPatch, small_bytes: int
) -> None:
    monkeypatch.setattr(recent, "_SMALL_FILE_BYTES", small_bytes)
    count = recent.MAX_LISTED_KEYS + 1
    docs = written.docs
    docs.update_many([(f"r{number}", {"n": number}) for number in range(count)])
    docs.update("r3", '{..,"m":1}')
    docs.update_many([(f"r{number}", f'{{..,"k":{number}}}') for number in range(count)])
    first, _, last = docs.table.deltas()
    assert recent.KEYS_PROPERTY not in first.properties
    assert recent.KEYS_PROPERTY not in last.properties
    documents = docs.get_many([f"r{number}" for number in range(count)])
    assert [(each["n"], each["k"]) for each in documents] == [(number, number) for number in range(count)]
    assert [each["~version"] for each in documents] == [3 if number == 3 else 2 for number in range(count)]


def test_long_keys_are_not_listed(written: Written) -> None:
    written.docs.update("k" * 5000, {"n": 1})
    (delta,) = written.docs.table.deltas()
    assert delta.properties == {}
    assert written.docs.get("k" * 5000)["n"] == 1


def test_what_was_compacted_is_forgotten(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_FORGET_ABOVE", 0)
    for number in range(8):
        written.write(number + 1, f"r{number % 2}", f'{{..,"n{number}":1}}')
    written.check()
    assert known(written.docs) == 8
    written.compact(40)
    written.write(41, "r0", '{..,"late":1}')
    written.check()
    assert known(written.docs) == 1


def test_a_snapshot_of_before_is_read_as_it_was(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_FORGET_ABOVE", 0)
    root = written.docs.lake.root
    seen = []
    for number in range(4):
        written.write(number + 1, "r", f'{{..,"n{number}":1}}')
        seen.append((snapshot_of(written.docs.name, root=root), number + 1))
    written.check()
    written.compact(40)
    for number in range(4, 6):
        written.write(40 + number, "r", f'{{..,"n{number}":1}}')
        seen.append((snapshot_of(written.docs.name, root=root), number + 1))
    # Back and forth, with whatever is known from the one before.
    for snapshot, version in [*seen, *reversed(seen), seen[0], seen[-1]]:
        assert len(snapshot.documents(["r"])["r"].row.changes) == version


def test_deltas_of_another_stream_at_the_same_positions_are_not_taken_for_known_ones(written: Written) -> None:
    root = written.docs.lake.root
    other = written.docs.lake.create_document_table("shop.others")
    for number in range(3):
        written.docs.update("r", f'{{..,"n{number}":1}}')
        other.update("r", f'{{..,"m{number}":1}}')
    for table, letter in [(written.docs, "n"), (other, "m"), (written.docs, "n")]:
        deltas = snapshot_of(table.name, root=root).deltas
        for count in (3, 2, 1):
            rows = recent.recent_deltas.rows_of(root, "one folder", deltas[:count], ["r"])["r"]
            assert [row[2] for row in rows] == [f'{{..,"{letter}{number}":1}}' for number in range(count)]


def test_a_rolled_back_table_is_read_from_its_deltas_again(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "_FORGET_ABOVE", 0)
    written.write(1, "r", '{"a":1}')
    written.compact(20)
    written.write(21, "r", '{..,"b":1}')
    written.write(22, "s", '{"b":1}')
    written.compact(40)
    written.write(41, "s", '{..,"c":1}')
    written.check()
    first, *_ = written.docs.rounds()
    written.docs.table.rollback(first.round_id)
    written.check()


@pytest.mark.parametrize("few_bytes", [0, 1 << 30])
@pytest.mark.parametrize("small_bytes", [0, 1500, 1 << 20])
def test_a_scan_puts_waiting_rows_to_their_buckets_however_they_are_read(
    written: Written, monkeypatch: pytest.MonkeyPatch, few_bytes: int, small_bytes: int
) -> None:
    monkeypatch.setattr(recent, "_FEW_BYTES", few_bytes)
    monkeypatch.setattr(recent, "_SMALL_FILE_BYTES", small_bytes)
    for number in range(12):
        written.write(number + 1, f"r{number}", f'{{"n":{number}}}')
    written.check()
    written.compact(40, replace(ROOMY, bucket_rows=4))
    for number in range(12):
        text = "x" * (number % 2 * 2000)
        written.write(41 + number, f"r{number % 5}", f'{{..,"k{number}":"{text}{number}"}}')
        written.write(41 + number, f"s{number % 3}", f'{{..,"k{number}":1}}')
    assert len(written.docs.rounds()[-1].buckets) > 1
    written.check()
    written.compact(80, replace(ROOMY, bucket_rows=4))
