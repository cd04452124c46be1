"""Files of change events that arrive in a folder: the options of `write`, several tables, each event once."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import siltstone
from siltstone.catalog import main as catalog
from siltstone.cdc import SOURCE_POSITION
from siltstone.cli.main import app
from siltstone.errors import InputWarning, InvalidInputError, StorageError
from siltstone.lake import Table
from siltstone.service.ingests import Ingests
from tests.unit.cdc.messages import change, lines, told, with_schema

SCHEMA = {"id": "int64", "price": "decimal(12,4)", "at": "timestamp", SOURCE_POSITION: "binary"}
FIELDS = [told("id", "int64"), told("price", "string")]


class Place:
    """A table of events, and a folder beside its lake."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "drops"
        self.folder.mkdir()
        self.lake = siltstone.open(tmp_path / "lake")
        self.table = self.lake.create_table(
            "shop.orders", schema=SCHEMA, primary_keys=["id"], sort_keys=[SOURCE_POSITION]
        )

    def drop(self, name: str, *events: Any) -> None:
        (self.folder / name).write_bytes(lines(events))
        os.utime(self.folder / name, (1_700_000_000, 1_700_000_000))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def rows_of(table: Table) -> list[tuple[Any, ...]]:
    found = table.to_arrow(["id", "price"], include_uncompacted=True).to_pylist()
    return sorted((row["id"], str(row["price"])) for row in found)


def order(lsn: int, key: int, price: str | float, table: str = "orders") -> dict[str, Any]:
    return {
        "key": {"id": key},
        "value": with_schema(change("c", lsn, {"id": key, "price": price}, table=table), FIELDS),
    }


def test_what_is_ambiguous_is_said_and_what_does_not_fit_is_put_aside(place: Place, tmp_path: Path) -> None:
    plain = change("c", 1, {"id": 1, "price": "1234", "at": 5_000_000})
    place.drop("a.jsonl", plain, change("c", 2, {"id": "x", "price": "1", "at": 1}))
    with pytest.raises(InvalidInputError, match=r"a\.jsonl, line 1: .*--decimals"):
        place.table.ingest(place.folder, format="debezium")
    misfits = tmp_path / "misfits"
    options: dict[str, Any] = {"decimals": "text", "times": {"*": "us"}, "rejects": str(misfits), "done": "move"}
    with pytest.warns(InputWarning, match="1 of 2 events did not fit"):
        taken = place.table.ingest(place.folder, format="debezium", **options)
    assert (taken.files, taken.rows, taken.rejected) == (1, 1, [])
    assert rows_of(place.table) == [(1, "1234.0000")]
    (file,) = misfits.iterdir()
    assert json.loads(file.read_bytes())["place"].endswith("a.jsonl, line 2")
    for wrong in (
        {"decimals": "text"},
        {"format": "debezium", "op_column": "op"},
        {"format": "maxwell", "create": True},
    ):
        with pytest.raises(InvalidInputError, match=r"go(es)? with"):
            place.table.ingest(place.folder, **wrong)


@pytest.mark.parametrize("doomed", ["shop.items", "shop.orders"])
def test_events_of_several_tables_are_written_once_though_a_process_dies_between_two(
    place: Place, monkeypatch: pytest.MonkeyPatch, doomed: str
) -> None:
    place.drop("a.jsonl", order(1, 1, "1"), order(2, 7, "2", table="items"), order(3, 2, "3"))
    options: dict[str, Any] = {"format": "debezium", "into": "shop.{table}", "create": True}
    write = catalog.write_staged

    def fail_at_one(name: str, *arguments: Any, **named: Any) -> int:
        if name == doomed:
            raise StorageError("away")
        return write(name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "write_staged", fail_at_one)
        with pytest.raises(StorageError):
            place.table.ingest(place.folder, **options)
    assert len(place.table.deltas()) == 0
    assert place.table.ingest(place.folder, **options).files == 1
    items = place.lake.table("shop.items")
    assert (rows_of(place.table), rows_of(items)) == ([(1, "1.0000"), (2, "3.0000")], [(7, "2")])
    assert [len(each.deltas()) for each in (place.table, items)] == [1, 1]
    assert place.table.ingest(place.folder, **options).files == 0
    # A file that has nothing for the table that remembers.
    place.drop("b.jsonl", order(4, 8, "4", table="items"))
    assert place.table.ingest(place.folder, **options).rows == 1
    assert len(rows_of(items)) == 2


def test_one_event_that_does_not_fit_stops_all_tables(place: Place) -> None:
    place.drop("a.jsonl", order(1, 1, "1"), order(2, 7, "2", table="items"), order(3, 8, 3.5, table="items"))
    with pytest.raises(InvalidInputError, match="line 3"):
        place.lake.write_change_files([str(place.folder / "a.jsonl")], "debezium", into="shop.{table}", create=True)
    assert place.table.deltas() == []
    (place.folder / "a.jsonl").write_text("no event\n")
    with pytest.raises(InvalidInputError, match=r"a\.jsonl, line 1: .*--format debezium"):
        place.lake.write_change_files([str(place.folder / "a.jsonl")], "debezium", into="shop.{table}", create=True)


def test_a_table_declares_all_of_it(place: Place, tmp_path: Path) -> None:
    declared = {
        "ingest.source": str(place.folder),
        "ingest.format": "debezium",
        "ingest.into": "shop.{table}",
        "ingest.create": "true",
        "ingest.decimals": "text",
        "ingest.times": "at=us",
        "ingest.rejects": str(tmp_path / "misfits"),
    }
    place.table.alter(properties=declared)
    place.drop("a.jsonl", order(1, 1, "1"), order(2, 7, "2", table="items"), "no event")
    with pytest.warns(InputWarning, match="did not fit"):
        (taken,) = Ingests(place.lake, lambda: True).step()
    assert (taken.files, taken.rows, rows_of(place.lake.table("shop.items"))) == (1, 2, [(7, "2")])


def test_the_command_has_the_options_of_write(place: Place, tmp_path: Path) -> None:
    place.drop("a.jsonl", change("c", 1, {"id": 1, "price": "1234", "at": 5_000_000}))
    command = ["ingest", "shop.orders", str(place.folder), "--root", place.lake.root, "--format", "debezium"]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 1
    assert "--decimals" in told.output
    more = ["--decimals", "text", "--times", "at=us", "--rejects", str(tmp_path / "misfits")]
    told = CliRunner().invoke(app, [*command, *more])
    assert told.exit_code == 0, told.output
    assert rows_of(place.table) == [(1, "1234.0000")]
    assert CliRunner().invoke(app, [*command, "--times", "weeks"]).exit_code == 2
