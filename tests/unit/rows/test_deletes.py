"""Deletes that follow each other are read as one, and mean what they mean one after another."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

import siltstone
from siltstone.rows import merge
from siltstone.rows.files import StoredFile
from siltstone.rows.job import RoundJob
from siltstone.testing.oracle import oracle_of, same_rows


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count how often compacted files are searched for rows to delete."""
    scans: list[str] = []
    matching_rows = merge._matching_rows

    def counted(job: RoundJob, file: StoredFile, *rest: object) -> object:
        scans.append(file.file.uri)
        return matching_rows(job, file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(merge, "_matching_rows", counted)
    return scans


@pytest.fixture(params=["deduplicate", "partial_update"])
def table(request: pytest.FixtureRequest, local_root: str) -> Iterator[siltstone.Table]:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"id": "int64", "batch": "int32", "note": "string"},
        primary_keys="id",
        merge_engine=request.param,
    )
    numbers = range(12)
    notes = [None if number % 5 == 0 else f"n{number}" for number in numbers]
    table.write(
        pa.table({"id": numbers, "batch": pa.array([number % 6 for number in numbers], pa.int32()), "note": notes})
    )
    table.compact(engine="local")
    yield table
    table.compact(engine="local")
    same_rows(table.to_arrow(), oracle_of(table).rows())


def delete(table: siltstone.Table, column: str, *values: object) -> None:
    table.write([{column: value} for value in values], type="delete", delete_columns=[column])


def test_files_are_searched_once_for_all_deletes_by_the_same_columns(table: siltstone.Table, scans: list[str]) -> None:
    for batch in (1, 2):
        delete(table, "batch", batch)
    # What comes after a delete stays, until the next one.
    table.write([{"id": 1, "batch": 1, "note": "back"}, {"id": 20, "batch": 3, "note": "new"}])
    for batch in (3, 4):
        delete(table, "batch", batch)
    table.compact(engine="local")
    assert len(scans) == 1
    assert sorted(table.to_arrow()["id"].to_pylist()) == [0, 1, 5, 6, 11]


def test_deletes_of_a_type_that_became_wider_are_read_with_earlier_ones(table: siltstone.Table) -> None:
    delete(table, "batch", 1)
    table.alter(add_columns={"batch": "int64"})
    delete(table, "batch", 2, 1 << 40)
    delete(table, "note", None, "n3")
    delete(table, "note", "n4")
    delete(table, "id", 11)
    delete(table, "id", 9)
