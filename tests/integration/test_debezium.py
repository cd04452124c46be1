"""Real Debezium on a real PostgreSQL: random transactions, captured, shuffled, doubled and written, are the table that they were of."""

import datetime
import json
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from examples.debezium import DebeziumFeed, logical_postgres, missing_tools, postgres_settings
from examples.postgres_cdc import Connection, connect

import siltstone
from siltstone.change_writes import ChangeOptions
from tests.waiting import wait_for

pytestmark = pytest.mark.integration

STEPS = int(os.environ.get("SILTSTONE_CDC_STEPS", "1500"))
COLUMNS = """id int, code text, amount numeric(12, 2), ratio float8, flag boolean, day date, at timestamp(6), seen timestamptz,
    clock time(6), doc jsonb, raw bytea, ref uuid, small smallint, large bigint, note text"""
NAMES = [column.split()[0] for column in COLUMNS.replace("numeric(12, 2)", "numeric").split(",")]
FLAT = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    "transforms.unwrap.add.fields": "op,source.ts_us,source.sequence,source.lsn,source.table,source.connector",
}
Row = dict[str, Any]
Lines = list[bytes]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    problem = missing_tools()
    if problem is not None:
        pytest.skip(problem)
    with logical_postgres() as port:
        yield port


class Walk:
    """Random transactions on one table, always the same for a seed."""

    def __init__(self, database: Connection, table: str, seed: int, *, truncates: bool = True) -> None:
        self._database, self._table, self._random = database, table, random.Random(seed)
        self._truncates = truncates
        self._columns = list(NAMES)

    def run(self, steps: int) -> None:
        """Make steps in transactions of one to six, of which some are rolled back."""
        while steps > 0:
            count = self._random.randint(1, 6)
            steps -= count
            with self._database.transaction(force_rollback=self._random.random() < 0.1):
                for _ in range(count):
                    self._step()

    def add_column(self, name: str) -> None:
        self._database.execute(f"ALTER TABLE {self._table} ADD COLUMN {name} text")
        self._columns.append(name)

    def _step(self) -> None:
        choice, key = self._random.random(), self._random.randrange(60)
        if choice < 0.5:
            names = ", ".join(self._columns)
            values = ", ".join(["%s"] * len(self._columns))
            updates = ", ".join(f"{name} = excluded.{name}" for name in self._columns[1:])
            self._execute(
                f"INSERT INTO {self._table} ({names}) VALUES ({values}) ON CONFLICT (id) DO UPDATE SET {updates}",
                [key, *(self._value(name) for name in self._columns[1:])],
            )
        elif choice < 0.8:
            chosen = self._random.sample(self._columns[1:], self._random.randint(1, 3))
            settings = ", ".join(f"{name} = %s" for name in chosen)
            self._execute(f"UPDATE {self._table} SET {settings} WHERE id = %s", [*map(self._value, chosen), key])
        elif choice < 0.92:
            self._execute(f"DELETE FROM {self._table} WHERE id = %s", [key])
        elif choice < 0.995:
            free = f"NOT EXISTS (SELECT 1 FROM {self._table} WHERE id = %s)"
            other = self._random.randrange(60)
            self._execute(f"UPDATE {self._table} SET id = %s WHERE id = %s AND {free}", [other, key, other])
        elif self._truncates:
            self._execute(f"TRUNCATE {self._table}", [])

    def _execute(self, statement: str, values: Sequence[object]) -> None:
        self._database.execute(statement, values)

    def _value(self, column: str) -> object:
        chance = self._random
        if chance.random() < 0.1:
            return None
        moment = datetime.datetime(2026, 1, 1) + datetime.timedelta(microseconds=chance.randrange(10**14))
        made: dict[str, Callable[[], object]] = {
            "amount": lambda: Decimal(chance.randrange(-(10**11), 10**11)) / 100,
            "ratio": lambda: chance.choice([0.5, -1e300, float("nan"), float("inf"), chance.random()]),
            "flag": lambda: chance.random() < 0.5,
            "day": lambda: moment.date(),
            "at": lambda: moment,
            "seen": lambda: moment.replace(tzinfo=datetime.UTC),
            "clock": lambda: moment.time(),
            "doc": lambda: json.dumps({"n": chance.randrange(100), "t": "é" * chance.randrange(3)}),
            "raw": lambda: chance.randbytes(chance.randrange(8)),
            "ref": lambda: uuid.UUID(int=chance.getrandbits(128)),
            "small": lambda: chance.randrange(-(2**15), 2**15),
            "large": lambda: chance.randrange(-(2**63), 2**63),
            # Large enough to be stored apart, so that Debezium does not see it where it did not change.
            "note": lambda: chance.randbytes(6000).hex() if chance.random() < 0.6 else "short",
        }
        return made.get(column, lambda: f"text {chance.randrange(1000)}")()


def captured(feed: DebeziumFeed, until: str, then: Callable[[], object] = lambda: None) -> Lines:
    """Return all events up to a mark; after the snapshot, or what there is first, call `then`."""
    lines: Lines = []
    mark = f'"prefix":"{until}"'.encode()
    for number, batch in enumerate(feed.batches()):
        lines += batch
        if number == 0:
            then()
        if any(mark in line for line in batch):
            return lines
    raise AssertionError("the feed ended")


def mark(database: Connection, name: str) -> None:
    database.execute("SELECT pg_logical_emit_message(true, %s, '')", [name])


def new_table(database: Connection, name: str, *, is_full: bool) -> None:
    database.execute(f"CREATE TABLE {name} ({COLUMNS}, PRIMARY KEY (id))")
    if is_full:
        database.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")


def expected_rows(database: Connection, table: str, columns: Sequence[str]) -> list[Row]:
    found = database.execute(f"SELECT {', '.join(columns)} FROM {table} ORDER BY id").fetchall()
    return [{name: plain(value) for name, value in zip(columns, row, strict=True)} for row in found]


def plain(value: Any) -> Any:
    """Return a value as both sides can be compared: NaN is itself, UUIDs are text, documents are their JSON."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, uuid.UUID):
        return str(value)
    return value


def found_rows(table: siltstone.Table, columns: Sequence[str]) -> list[Row]:
    table.compact(engine="local")
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    return [
        {name: plain(json.loads(row[name]) if name == "doc" and row[name] else row[name]) for name in columns}
        for row in rows
    ]


def payloads(lines: Lines) -> Lines:
    """Return events as a converter without schemas writes them."""

    def bare(part: Any) -> Any:
        return part["payload"] if isinstance(part, dict) and "payload" in part else part

    split = [json.loads(line) for line in lines]
    return [json.dumps({"key": bare(each["key"]), "value": bare(each["value"])}).encode() + b"\n" for each in split]


def write_in_parts(lake: siltstone.Lake, name: str, lines: Lines, parts: int = 4, **options: Any) -> siltstone.Table:
    size = -(-len(lines) // parts)
    for start in range(0, len(lines), size):
        data = b"".join(lines[start : start + size])
        lake.write_changes(data, "debezium", into=name, create=True, options=ChangeOptions(**options))
    return lake.table(name)


def doubled(lines: Lines, chance: random.Random) -> Lines:
    return lines + chance.sample(lines, len(lines) // 10)


def test_captured_tables_have_the_rows_of_the_database_in_any_order_of_events(port: int, tmp_path: Path) -> None:
    chance = random.Random(5)
    lake = siltstone.open(tmp_path / "lake")
    with connect(port) as database:
        new_table(database, "full_items", is_full=True)
        walk = Walk(database, "full_items", 1)
        walk.run(30)

        def change() -> None:
            walk.run(STEPS // 2)
            walk.add_column("city")
            walk.run(STEPS // 2)
            mark(database, "end")

        settings = postgres_settings(
            port, "public.full_items", **{"slot.name": "full", "publication.name": "feed_full"}
        )
        with DebeziumFeed(settings, tmp_path / "full") as feed:
            lines = captured(feed, "end", change)
        columns = [*NAMES, "city"]
        expected = expected_rows(database, "full_items", columns)
    assert len(expected) > 10
    shuffled = doubled(lines, chance)
    chance.shuffle(shuffled)
    # The first part has to tell all columns: later ones may then come in any order.
    shuffled.sort(key=lambda line: b'"field":"city"' not in line)
    assert found_rows(write_in_parts(lake, "shop.shuffled", shuffled), columns) == expected
    bare = payloads(lines)
    chance.shuffle(bare)
    table = lake.create_table(
        "shop.bare",
        schema=lake.table("shop.shuffled").schema,
        primary_keys=["id"],
        sort_keys=["_source_position"],
        merge_engine=lake.table("shop.shuffled").version.merge_engine,
    )
    table.write_changes(b"".join(bare), "debezium", decimals="base64", times={"*": "us"})
    assert found_rows(table, columns) == expected


def test_large_values_that_did_not_change_are_kept_also_where_events_are_sent_again(port: int, tmp_path: Path) -> None:
    chance = random.Random(6)
    lake = siltstone.open(tmp_path / "lake")
    with connect(port) as database:
        new_table(database, "plain_items", is_full=False)
        walk = Walk(database, "plain_items", 2)
        walk.run(30)

        def change() -> None:
            walk.run(STEPS)
            mark(database, "end")

        settings = postgres_settings(
            port, "public.plain_items", **{"slot.name": "plain", "publication.name": "feed_plain"}
        )
        with DebeziumFeed(settings, tmp_path / "plain") as feed:
            lines = captured(feed, "end", change)
        # Of what is unchanged and large, an exact number comes as null, which nothing can tell from NULL; these are small.
        expected = expected_rows(database, "plain_items", NAMES)
    assert any(b"__debezium_unavailable_value" in line for line in lines)
    # As after a crash: in their order, and some of them again.
    again = lines[: len(lines) // 2] + lines[len(lines) // 3 :]
    assert found_rows(write_in_parts(lake, "shop.again", again), NAMES) == expected
    twice = [line for line in lines for _ in range(2 if chance.random() < 0.1 else 1)]
    assert found_rows(write_in_parts(lake, "shop.twice", twice, parts=7), NAMES) == expected


def test_a_second_snapshot_after_a_lost_slot_and_transactions_in_flight_end_at_the_same_rows(
    port: int, tmp_path: Path
) -> None:
    chance = random.Random(7)
    lake = siltstone.open(tmp_path / "lake")
    names = {"slot.name": "lost", "publication.name": "feed_lost"}
    with connect(port) as database, connect(port) as other:
        new_table(database, "lost_items", is_full=True)
        walk = Walk(database, "lost_items", 3, truncates=False)
        walk.run(100)
        settings = postgres_settings(port, "public.lost_items", **names)

        def change() -> None:
            walk.run(200)
            mark(database, "first")

        with DebeziumFeed(settings, tmp_path / "first") as feed:
            lines = captured(feed, "first", change)
        database.execute("SELECT pg_drop_replication_slot('lost')")
        # Nobody captures this.
        walk.run(200)
        other.autocommit = False
        other.execute("INSERT INTO lost_items (id, code) VALUES (900, 'in flight')")

        def go_on() -> None:
            walk.run(200)
            mark(database, "second")

        with DebeziumFeed(settings, tmp_path / "second") as feed:
            # A new slot waits for transactions that are open; one that ends meanwhile is in the snapshot or in the stream.
            wait_for(
                "the new slot",
                lambda: bool(
                    database.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'lost'").fetchall()
                ),
            )
            other.commit()
            lines += captured(feed, "second", go_on)
        expected = expected_rows(database, "lost_items", NAMES)
    events = doubled(lines, chance)
    chance.shuffle(events)
    table = write_in_parts(lake, "shop.lost", events)
    found = found_rows(table, NAMES)
    # What was deleted while nobody captured is in no event: such rows stay until they are deleted or written again.
    stale = {row["id"] for row in found} - {row["id"] for row in expected}
    assert [row for row in found if row["id"] not in stale] == expected
    assert {row["id"] for row in expected} >= {900}


def test_flattened_events_with_their_source_are_taken_in(port: int, tmp_path: Path) -> None:
    lake = siltstone.open(tmp_path / "lake")
    with connect(port) as database:
        new_table(database, "flat_items", is_full=True)
        # The flattening drops truncates, so there must be none.
        walk = Walk(database, "flat_items", 4, truncates=False)

        def change() -> None:
            walk.run(300)
            database.execute("INSERT INTO flat_items (id, code) VALUES (999, 'last')")

        database.execute("INSERT INTO flat_items (id, code) VALUES (998, 'first')")
        settings = postgres_settings(
            port, "public.flat_items", **{"slot.name": "flat", "publication.name": "feed_flat", **FLAT}
        )
        lines: Lines = []
        with DebeziumFeed(settings, tmp_path / "flat") as feed:
            for number, batch in enumerate(feed.batches()):
                lines += batch
                if number == 0:
                    change()
                if any(b'"id":999' in line for line in batch):
                    break
        expected = expected_rows(database, "flat_items", NAMES)
    table = write_in_parts(lake, "shop.flat", lines, parts=3)
    assert found_rows(table, NAMES) == expected
