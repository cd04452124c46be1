"""A table published as Iceberg: what other readers find in it, what its metadata say, and publishers that die or meet others."""

import contextlib
import datetime
import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

import siltstone
from siltstone.errors import ConflictError, InvalidInputError, StorageError
from siltstone.log.commit import forget_logs
from siltstone.publish.comparison import difference
from siltstone.publish.iceberg_schema import bound_bytes
from siltstone.publish.outcomes import Published
from siltstone.testing.faults import FAULT_KINDS, FaultKind, Killed, faults
from tests.unit.publish.foreign import folder_of
from tests.unit.publish.test_delta import SMALL, step
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, make_table

pytestmark = pytest.mark.filterwarnings("ignore:Iceberg scan planning")
FORMATS = ("2", "3")


@pytest.fixture(params=FORMATS)
def table(local_root: str, request: pytest.FixtureRequest) -> siltstone.Table:
    return make_table(local_root, properties={"publish.iceberg.format_version": request.param})


def metadata_of(table: siltstone.Table, version: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata_path(table, version).read_text())
    return found


def metadata_path(table: siltstone.Table, version: int | None = None) -> Path:
    newest = versions_of(table)[-1] if version is None else version
    return folder_of(table) / "iceberg" / "metadata" / f"v{newest}.metadata.json"


def versions_of(table: siltstone.Table) -> list[int]:
    paths = (folder_of(table) / "iceberg" / "metadata").glob("v*.metadata.json")
    return sorted(int(path.name.split(".")[0][1:]) for path in paths)


def iceberg_rows(table: siltstone.Table, version: int | None = None) -> pa.Table:
    return StaticTable.from_metadata(str(metadata_path(table, version))).scan().to_arrow()


def same_as(table: siltstone.Table, expected: pa.Table, version: int | None = None, *, polars: bool = True) -> None:
    keys = [key for key in table.version.primary_keys if key in expected.column_names]
    assert difference(expected, iceberg_rows(table, version), keys) == ""
    if polars:
        path = str(metadata_path(table, version))
        assert difference(expected, pl.scan_iceberg(path).collect().to_arrow(), keys) == ""


def publish(table: siltstone.Table) -> Published:
    return table.publish("iceberg")


def test_every_version_of_a_history_is_what_the_table_was(table: siltstone.Table) -> None:
    states = []
    for number, settings in enumerate((SMALL, SMALL, SMALL, replace(SMALL, max_delta_fraction=0.0), MAJOR, SMALL)):
        step(table, range(number * 3, number * 3 + 30, number + 1), f"{number}", settings)
        assert publish(table).version == number + 1
        states.append(table.to_arrow())
        same_as(table, states[-1])
    table.rollback(2)
    publish(table)
    same_as(table, table.to_arrow())
    for number, expected in enumerate(states):
        same_as(table, expected, number + 1, polars=False)
    assert not publish(table).is_new
    snapshots = metadata_of(table)["snapshots"]
    assert [each["sequence-number"] for each in snapshots] == list(range(1, len(snapshots) + 1))


def test_snapshots_say_truly_what_they_did(table: siltstone.Table) -> None:
    step(table, range(20), "a")
    publish(table)
    step(table, range(5), "b")
    publish(table)
    compact(table, MAJOR)
    publish(table)
    summaries = [each["summary"] for each in metadata_of(table)["snapshots"]]
    assert [each["operation"] for each in summaries] == ["append", "overwrite", "replace"]
    assert [each["total-position-deletes"] for each in summaries] == ["0", "5", "0"]
    assert [each["total-records"] for each in summaries] == ["20", "25", "20"]


def test_a_table_that_was_never_compacted_is_empty(table: siltstone.Table) -> None:
    publish(table)
    assert iceberg_rows(table).num_rows == 0
    step(table, range(3), "a")
    publish(table)
    same_as(table, table.to_arrow())


def test_columns_that_are_added_renamed_widened_and_dropped_are_read_by_their_ids(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    publish(table)
    table.write(pa.table({"id": [100, 3], "value": ["x", "y"], "extra": [1.5, None]}))
    compact(table, MINOR)
    publish(table)
    same_as(table, table.to_arrow())
    table.alter(rename_columns={"extra": "price"}, drop_columns=["value"])
    publish(table)
    assert "price" in iceberg_rows(table).column_names
    same_as(table, table.to_arrow())
    table.write(pa.table({"id": [4], "value": [True]}))
    compact(table, MINOR)
    publish(table)
    same_as(table, table.to_arrow())


def test_partitions_and_types_of_all_kinds_are_read(local_root: str) -> None:
    schema: dict[str, Any] = {
        "id": "int64", "day": "date", "name": "string", "flag": "bool", "small": "int8", "amount": "decimal(12,3)",
        "at": "timestamp", "zoned": "timestamp_utc", "clock": "time", "ratio": "float", "data": "binary",
        "tags": {"list": "string"}, "place": {"struct": [{"name": "x", "type": "double"}]}, "counts": {"map": ["string", "int32"]},
    }  # fmt: skip
    keys = ["day", "name", "flag", "small"]
    table = siltstone.open(local_root).create_table(
        "shop.kinds", schema=schema, primary_keys=["id", *keys], partition_keys=keys
    )
    at = datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)
    values: list[dict[str, Any]] = [
        {
            "id": number, "day": day, "name": name, "flag": number % 2 == 0, "small": -number, "amount": Decimal(number) / 8,
            "at": at + datetime.timedelta(microseconds=number), "zoned": at.replace(tzinfo=datetime.UTC), "clock": at.time(),
            "ratio": float("nan"), "data": b"\x00\xff", "tags": ["a", None], "place": {"x": 1.5}, "counts": [("k", number)],
        }
        for number, (day, name) in enumerate([(datetime.date(1969, 7, 20), "50%"), (None, "a b/ü"), (None, None)] * 2)
    ]  # fmt: skip
    for _ in range(2):
        table.write(pa.Table.from_pylist(values, schema=table.version.schema))
        table.compact(engine="local")
    publish(table)
    # Polars has no type for times of day in Iceberg tables.
    same_as(table, table.to_arrow(), polars=False)


def test_what_iceberg_has_no_type_for_is_refused_by_name(local_root: str) -> None:
    table = siltstone.open(local_root).create_table("shop.waits", schema={"id": "int64", "wait": "duration"})
    with pytest.raises(InvalidInputError, match="wait has a type that Iceberg does not have"):
        publish(table)


def test_a_file_whose_ids_are_of_another_table_is_refused(table: siltstone.Table) -> None:
    step(table, range(3), "a")
    (path,) = folder_of(table).glob("compacted/*/*.parquet")
    found = pq.read_table(path)
    fields = [field.with_metadata({"PARQUET:field_id": str(9 - number)}) for number, field in enumerate(found.schema)]
    pq.write_table(found.cast(pa.schema(fields)), path)
    with pytest.raises(InvalidInputError, match="would not find column 'id' by its id"):
        publish(table)


def test_what_others_committed_is_refused_and_taken_back(table: siltstone.Table) -> None:
    step(table, range(3), "a")
    publish(table)
    foreign = metadata_of(table)
    for snapshot in foreign["snapshots"]:
        snapshot["summary"].pop("siltstone.write-id")
    metadata_path(table, 2).write_text(json.dumps(foreign))
    with pytest.raises(ConflictError, match="nobody but Siltstone may write"):
        publish(table)
    assert table.publish("iceberg", replace=True).version == 3
    same_as(table, table.to_arrow())


def test_a_lake_that_was_moved_is_published_anew(new_root: Callable[[str], str]) -> None:
    table = make_table(new_root("local"))
    step(table, range(9), "a")
    publish(table)
    moved = Path(new_root("local"))
    Path(table.lake.root).rename(moved)
    table = siltstone.open(str(moved)).table(table.name)
    step(table, range(3), "b")
    assert publish(table).version == 2
    same_as(table, table.to_arrow())


def test_what_is_unpublished_is_no_table_and_its_files_go(table: siltstone.Table) -> None:
    step(table, range(9), "a")
    publish(table)
    step(table, range(3), "b")
    publish(table)
    assert table.unpublish() == ["iceberg"]
    assert table.published() == []
    assert not table.unpublish()
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    left = [path.name for path in (folder_of(table) / "iceberg").rglob("*") if path.is_file()]
    assert left == ["v3.metadata.json"]
    assert publish(table).version == 4
    same_as(table, table.to_arrow())


def test_a_vacuum_keeps_what_is_published_and_forgets_what_it_removes(table: siltstone.Table) -> None:
    for number in range(4):
        step(table, range(number, number + 9), f"{number}", SMALL)
        publish(table)
    before = iceberg_rows(table)
    for number in range(2):
        step(table, range(16), f"more {number}", SMALL)
    assert table.vacuum(retention_ms=0, orphan_grace_ms=0).removed_files
    assert iceberg_rows(table).sort_by("id") == before.sort_by("id")
    assert len(metadata_of(table)["snapshots"]) == 1
    assert table.fsck() == []
    publish(table)
    same_as(table, table.to_arrow())
    assert not table.vacuum(retention_ms=3600_000, orphan_grace_ms=0).removed_files


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_publish_that_fails_at_any_call_is_done_again_once(new_root: Callable[[str], str], kind: FaultKind) -> None:
    at_call = calls = 0
    while at_call <= calls:
        # Every second call is enough: those between them read.
        at_call += 2
        table = make_table(new_root("local"))
        step(table, range(6), "first", SMALL)
        publish(table)
        step(table, range(0, 6, 2), "second", SMALL)
        with faults(table.lake.root, at_call=at_call, kind=kind) as store, contextlib.suppress(StorageError, Killed):
            publish(table)
        calls = max(calls, store.calls)
        forget_logs(table.lake.root)
        publish(table)
        same_as(table, table.to_arrow(), polars=False)
        assert versions_of(table) == [1, 2], f"call {at_call}"
    assert calls > 5


def test_two_publishers_make_each_version_once(local_root: str) -> None:
    table = make_table(local_root)
    published: list[int] = []
    stopped = threading.Event()

    def publish_on() -> None:
        while True:
            is_last = stopped.is_set()
            done = publish(table)
            if done.is_new:
                published.append(done.version)
            if is_last:
                return

    threads = [threading.Thread(target=publish_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(8):
        step(table, range(number, number + 4), f"{number}", SMALL)
    stopped.set()
    for thread in threads:
        thread.join()
    assert sorted(published) == versions_of(table) == list(range(1, len(published) + 1))
    same_as(table, table.to_arrow())


@pytest.mark.parametrize(
    ("text", "least", "greatest"),
    [
        ("short", b"short", b"short"),
        ("a" * 17, b"a" * 16, b"a" * 15 + b"b"),
        ("\U0010ffff" * 17, "\U0010ffff".encode() * 16, None),
        ("a" + "\U0010ffff" * 16, ("a" + "\U0010ffff" * 15).encode(), b"b"),
        ("\ud7ff" * 17, ("\ud7ff" * 16).encode(), ("\ud7ff" * 15 + "\ue000").encode()),
    ],
)
def test_bounds_of_long_text_are_cut_so_that_all_of_it_is_between_them(
    text: str, least: bytes, greatest: bytes | None
) -> None:
    assert bound_bytes(pa.string(), text, is_upper=False) == least
    assert bound_bytes(pa.string(), text, is_upper=True) == greatest


def test_a_check_does_not_warn_of_what_readers_could_do_better(table: siltstone.Table) -> None:
    step(table, range(10), "a")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", pl.exceptions.PerformanceWarning)
        checks = {check.reader: check.state for check in table.check_published(table.publish("iceberg"))}
    assert (checks["pyiceberg"], checks["polars"]) == ("equal", "equal")
    assert not [each for each in warned if issubclass(each.category, pl.exceptions.PerformanceWarning)]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), -2, b"\xfe" + b"\xff" * 7),
        (pa.int8(), 7, b"\x07\x00\x00\x00"),
        (pa.decimal128(9, 2), Decimal("-1.28"), b"\x80"),
        (pa.decimal128(9, 2), Decimal("1.28"), b"\x00\x80"),
        (pa.date32(), datetime.date(1969, 12, 31), b"\xff" * 4),
        (pa.timestamp("us"), datetime.datetime(1970, 1, 1, 0, 0, 0, 1), b"\x01" + bytes(7)),
    ],
)
def test_bounds_are_written_as_single_values(kind: pa.DataType, value: Any, expected: bytes) -> None:
    assert bound_bytes(kind, value, is_upper=True) == expected
