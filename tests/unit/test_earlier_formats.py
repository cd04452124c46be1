"""Lakes that earlier versions made: they open, read, take writes, compact and pass every check."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import siltstone

FIXTURES = Path(__file__).parent.parent / "fixtures"
ARCHIVES = sorted(path.name for path in FIXTURES.glob("*.tar.gz"))
FOLLOWED = {"new.stock": "new.feed"}
ROW_TABLES = [
    "crm.people", "new.feed", "new.stock", "old.stock", "shop.orders", "shop.prices", "web.events", "web.lines",
    "web.visits",
]  # fmt: skip


class Earlier:
    """A copy of an earlier lake, and what it showed when it was made."""

    def __init__(self, archive: str, folder: Path) -> None:
        with tarfile.open(FIXTURES / archive) as packed:
            packed.extractall(folder, filter="data")
        self.lake = siltstone.open(folder / "lake")
        self.expected: dict[str, Any] = json.loads((folder / "expected.json").read_text())


@pytest.fixture(params=ARCHIVES)
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Earlier:
    return Earlier(request.param, tmp_path)


def plain(value: object) -> object:
    """Return a value as `expected.json` has it."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def in_order(rows: list[Any]) -> list[Any]:
    return sorted((json.dumps(plain(row), sort_keys=True) for row in rows), key=str)


def rows_of(table: siltstone.Table, **more: Any) -> list[str]:
    return in_order(table.to_arrow(**more).to_pylist())


def compact(table: siltstone.Table, *, full: bool = False) -> None:
    """Compact a table of rows in this process."""
    table.compact(full=full, on_behalf_of=FOLLOWED.get(table.name), engine="local")


def test_every_table_of_an_earlier_lake_is_there_with_its_rounds(earlier: Earlier) -> None:
    tables = {table.name: len(table.rounds()) for table in earlier.lake.tables()}
    assert tables == earlier.expected["rounds"]


@pytest.mark.parametrize("name", ROW_TABLES)
def test_an_earlier_table_shows_the_rows_that_it_showed_then(earlier: Earlier, name: str) -> None:
    table = earlier.lake.table(name)
    assert rows_of(table) == in_order(earlier.expected[name]["compacted"])
    assert rows_of(table, include_uncompacted=True) == in_order(earlier.expected[name]["fresh"])


@pytest.mark.parametrize("name", ROW_TABLES)
def test_an_earlier_table_passes_every_check(earlier: Earlier, name: str) -> None:
    assert earlier.lake.table(name).fsck(deep=True) == []


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", ROW_TABLES)
def test_an_earlier_table_compacts_to_the_rows_that_a_fresh_read_showed(
    earlier: Earlier, name: str, full: bool
) -> None:
    table = earlier.lake.table(name)
    compact(table, full=full)
    assert rows_of(table) == in_order(earlier.expected[name]["fresh"])
    assert table.fsck(deep=True) == []
    table.vacuum(retention_ms=0, orphan_grace_ms=0)
    assert rows_of(table) == in_order(earlier.expected[name]["fresh"])
    assert table.fsck(deep=True) == []


@pytest.mark.parametrize("name", sorted({*ROW_TABLES} - {"new.stock", "web.events"}))
def test_an_earlier_table_takes_writes_and_new_columns(earlier: Earlier, name: str) -> None:
    table = earlier.lake.table(name)
    before = table.to_arrow(include_uncompacted=True)
    row = before.slice(0, 1).append_column("added_later", pa.array([7], pa.int64()))
    table.write(row, type="upsert" if table.version.primary_keys else "append")
    expected = [{**each, "added_later": None} for each in before.to_pylist()]
    if table.version.primary_keys:
        expected[0]["added_later"] = 7
    else:
        expected.append({**expected[0], "added_later": 7})
    assert rows_of(table, include_uncompacted=True) == in_order(expected)
    compact(table)
    assert rows_of(table) == in_order(expected)
    assert table.fsck(deep=True) == []


def test_an_earlier_write_is_still_known_by_its_idempotency_id(earlier: Earlier) -> None:
    orders = earlier.lake.table("shop.orders")
    before = orders.deltas()
    position = orders.write(orders.to_arrow().slice(0, 1), idempotency=("loader", 1))
    assert orders.deltas() == before
    assert position == next(each.stream_position for each in before if each.idempotency is not None)


def test_an_earlier_tombstone_still_keeps_late_data_out(earlier: Earlier) -> None:
    prices = earlier.lake.table("shop.prices")
    late = pa.table({"item": ["b"], "at": pa.array([0], pa.timestamp("us")), "price": [5.0]})
    prices.write(late)
    assert rows_of(prices, include_uncompacted=True) == in_order(earlier.expected["shop.prices"]["fresh"])


def test_an_earlier_round_can_be_rolled_back_to(earlier: Earlier) -> None:
    people = earlier.lake.table("crm.people")
    people.rollback(1)
    assert people.to_arrow().num_rows == 3
    compact(people)
    assert rows_of(people) == in_order(earlier.expected["crm.people"]["fresh"])


def test_earlier_documents_are_what_they_were_and_stay_so_when_compacted(earlier: Earlier) -> None:
    docs = earlier.lake.document_table("shop.reviews")

    def found() -> list[Any]:
        return sorted((plain(each) for each in docs.scan(include_deleted=True)), key=str)

    expected = sorted(earlier.expected["shop.reviews"], key=str)
    assert found() == expected
    assert docs.fsck(deep=True) == []
    docs.compact(engine="local")
    assert found() == expected
    docs.update("r1", '{..,"stars":1}')
    assert docs.get("r1")["stars"] == 1
    assert docs.fsck(deep=True) == []


def test_the_chain_of_an_earlier_log_begins_with_its_first_new_batch(earlier: Earlier) -> None:
    orders = earlier.lake.table("shop.orders")
    (folder,) = Path(earlier.lake.root).glob("tables/shop/orders/*/log")
    before = {path.name for path in folder.iterdir()}
    for _ in range(12):
        orders.write(orders.to_arrow().slice(0, 1))
    added = sorted((path for path in folder.iterdir() if path.name not in before), key=lambda path: path.name)
    assert any(path.suffix == ".compact" for path in added)
    assert all(b'"checksum":"' in path.read_bytes() for path in added)
    assert orders.fsck(deep=True) == []
    damaged = next(path for path in added if path.suffix == ".compact")
    damaged.write_bytes(damaged.read_bytes().replace(b'"lines":', b'"lines": ', 1))
    assert [found.file for found in orders.fsck()] == [str(damaged)]
