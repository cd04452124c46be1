"""Why a key has the row it has."""

import contextlib
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import siltstone
from siltstone.model import PartitionLocator
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.storage import object_store as storage
from siltstone.table.completion import compacted_partition, current_completion, locate_destination
from siltstone.testing.oracle import comparable, same_rows
from siltstone.testing.strategies import TableSettings, Write, histories


def test_every_delta_that_touched_a_key_is_told_with_its_effect(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "at": "int64", "status": "string"}, primary_keys="id", sort_keys="at"
    )
    table.write(pa.table({"id": [1, 7], "at": [10, 10], "status": ["x", "new"]}))
    table.write(pa.table({"id": [7, 7], "at": [30, 20], "status": ["paid", "late"]}))
    table.write(pa.table({"id": [7], "at": [40], "status": ["gone"], "op": ["d"]}), op_column="op")
    table.write(pa.table({"id": [7], "at": [35], "status": ["too late"]}))
    table.write(pa.table({"id": [7], "at": [50], "status": ["back"]}))
    table.write(pa.table({"status": ["back"]}), type="delete", delete_columns=["status"])
    table.write(pa.table({"id": [7], "at": [5], "status": ["anew"]}))
    (told,) = table.explain_key({"id": 7})
    assert [(event.stream_position, event.row, event.kind, event.effect) for event in told.events] == [
        (1, 1, "upsert", "brings the row"),
        (2, 0, "upsert", "replaces the row of position 1"),
        (2, 1, "upsert", "stays out: its sort key is older than that of position 2"),
        (3, 0, "row-level delete", "deletes the row"),
        (4, 0, "upsert", "stays out: its sort key is older than that of position 3"),
        (5, 0, "upsert", "brings the row"),
        (6, 0, "delete on status", "deletes the row"),
        (7, 0, "upsert", "brings the row"),
    ]
    assert [event.stream_position for event in told.events if event.is_winner] == [7]
    assert told.row == {"id": 7, "at": 5, "status": "anew"}


def test_a_wrong_key_is_refused(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders", schema={"id": "int64", "b": "int8"}, primary_keys="id"
    )
    table.write(pa.table({"id": [1]}))
    with pytest.raises(siltstone.InvalidInputError, match="primary key"):
        table.explain_key({"b": 1})
    with pytest.raises(siltstone.InvalidInputError, match="does not fit"):
        table.explain_key({"id": "seven"})
    assert table.explain_key({"id": 2}) == []


def migrated(local_root: str) -> tuple[siltstone.Table, siltstone.Table, siltstone.Table]:
    """Return an old table, the table whose deltas follow, and a new one that was rebased from the old on its behalf."""
    lake = siltstone.open(local_root)
    schema = {"id": "int64", "v": "string"}
    old = lake.create_table("old.orders", schema=schema, primary_keys="id")
    stream = lake.create_table("cdc.orders", schema=schema, primary_keys="id")
    new = lake.create_table("shop.orders", schema=schema, primary_keys="id")
    old.write(pa.table({"id": [1, 2], "v": ["old", "old"]}))
    compact_in_process(old)
    stream.write(pa.table({"id": [2, 3], "v": ["old", "not in the old table"]}))
    stream.write(pa.table({"id": [4], "v": ["new"]}))
    (on_behalf_of,) = stream._sources()
    rebase_in_process(new, compacted_partition(old._sources()[0]), on_behalf_of=on_behalf_of, high_watermark=1)
    compact_in_process(new, on_behalf_of)
    return old, stream, new


def test_a_key_that_came_with_a_rebase_is_explained_by_where_it_came_from(local_root: str) -> None:
    _, stream, new = migrated(local_root)
    (told,) = new.explain_key({"id": 1})
    assert [(event.stream_position, event.kind, event.effect) for event in told.events] == [
        (1, "rebase", "came with the rebase from old/orders/1/compacted/_")
    ]
    assert told.events[0].is_winner
    assert told.row == told.compacted_row == {"id": 1, "v": "old"}
    (told,) = new.explain_key({"id": 4})
    assert [(event.stream_position, event.effect) for event in told.events] == [(2, "brings the row")]
    stream.write(pa.table({"id": [1], "v": ["changed"]}))
    (told,) = new.explain_key({"id": 1})
    assert [event.effect for event in told.events][1:] == ["replaces the row of position 1"]
    assert (told.row, told.compacted_row) == ({"id": 1, "v": "changed"}, {"id": 1, "v": "old"})


def test_no_delta_below_the_watermark_of_a_rebase_brings_a_row(local_root: str) -> None:
    _, _, new = migrated(local_root)
    assert new.lookup({"id": 3}) == []
    assert new.explain_key({"id": 3}) == []
    (told,) = new.explain_key({"id": 2})
    assert [event.kind for event in told.events] == ["rebase"]


def test_a_round_that_is_gone_is_told_from_the_oldest_that_is_kept(local_root: str) -> None:
    _, stream, new = migrated(local_root)
    (on_behalf_of,) = stream._sources()
    stream.write(pa.table({"id": [1], "v": ["changed"]}))
    compact_in_process(new, on_behalf_of)
    new.vacuum(retention_ms=0, orphan_grace_ms=0)
    (told,) = new.explain_key({"id": 1})
    assert [(event.kind, event.effect) for event in told.events] == [
        ("compacted row", "is in the rows of round 3, the oldest that can still be read")
    ]
    assert told.row == {"id": 1, "v": "changed"}


def test_a_row_that_the_deltas_do_not_explain_is_told_as_it_is(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"id": "int64", "at": "int64"},
        primary_keys="id",
        sort_keys="at",
        properties={"tombstone_retention_seconds": "0"},
    )
    table.write(pa.table({"id": [1], "at": [9], "op": ["d"]}), op_column="op")
    compact_in_process(table, now_ms=1)
    table.write(pa.table({"id": [2], "at": [1]}))
    compact_in_process(table, now_ms=10)
    table.write(pa.table({"id": [1], "at": [5]}))
    compact_in_process(table, now_ms=20)
    (told,) = table.explain_key({"id": 1})
    assert told.row == told.compacted_row == {"id": 1, "at": 5}
    assert told.events[-1].effect == "is what round 3 left, which the deltas do not explain"


def compact_in_process(
    table: siltstone.Table, source: PartitionLocator | None = None, now_ms: int | None = None, **more: Any
) -> None:
    for own in table._sources():
        keys = tuple(table.version.primary_keys)
        request = Request(source or own, compacted_partition(own), keys, table.lake.root, now_ms=now_ms, **more)
        run_session(request, run_here)


def rebase_in_process(
    table: siltstone.Table, origin: PartitionLocator, *, on_behalf_of: PartitionLocator, high_watermark: int | None
) -> None:
    destination = compacted_partition(PartitionLocator(**{**on_behalf_of, **table.version.locator}))
    request = Request(
        origin,
        destination,
        tuple(table.version.primary_keys),
        table.lake.root,
        rebase_source=on_behalf_of,
        rebase_high_watermark=high_watermark,
    )
    run_session(request, run_here)


STEPS = [
    "none",
    "compact",
    "partly",
    "jump",
    "rebase",
    "rebase on rows",
    "rebase on a copy",
    "roll back",
    "vacuum",
    "trim",
]


class Life:
    """A table of one partition that things happen to, after each of which all its keys are explained."""

    def __init__(self, made: TableSettings) -> None:
        self.table = made.create(siltstone.open(f"memory://{uuid.uuid4().hex}"))
        self.keys = made.primary_keys
        self.copies = 0

    def step(self, what: str, choice: int) -> None:
        table = self.table
        (own,) = table._sources()
        completion = current_completion(locate_destination(compacted_partition(own), root=table.lake.root))
        watermark = completion.high_watermark if completion is not None else 0
        newest = table.deltas()[-1].stream_position if table.deltas() else watermark
        if what == "compact":
            compact_in_process(table)
        elif what == "partly":
            compact_in_process(table, last_stream_position=watermark + (newest - watermark) // 2)
        elif what == "jump":
            compact_in_process(table, rebase_high_watermark=choice % (newest + 1))
        elif what == "rebase":
            rebase_in_process(table, own, on_behalf_of=own, high_watermark=None if choice % 2 else newest // 2)
        elif what == "rebase on rows" and completion is not None:
            rebase_in_process(table, compacted_partition(own), on_behalf_of=own, high_watermark=choice % (newest + 1))
        elif what == "rebase on a copy":
            self.copies += 1
            copy = table.lake.create_table(f"shop.copy{self.copies}", schema=table.schema)
            copy.write(table.to_arrow().slice(choice % 2), "append")
            rebase_in_process(table, copy._sources()[0], on_behalf_of=own, high_watermark=choice % (newest + 1))
        elif what == "roll back":
            rounds = [round_.round_id for round_ in table.rounds()][:-1]
            if rounds:
                table.rollback(rounds[choice % len(rounds)])
        elif what == "vacuum":
            table.vacuum(retention_ms=0, orphan_grace_ms=0)
        elif what == "trim" and completion is not None and watermark <= newest:
            storage.delete_deltas(own, last_stream_position=watermark, root=table.lake.root)

    def check(self) -> None:
        """Compare what is told of every key that was ever written with what reads find."""
        only = self.table.version.keeps_history
        fresh = self.table.to_arrow(include_uncompacted=True, current_only=only).to_pylist()
        for key in self.all_keys():
            told = self.table.explain_key(key)
            assert len(told) <= 1
            compacted, row = (told[0].compacted_row, told[0].row) if told else (None, None)
            same_rows([] if compacted is None else [compacted], self.table.lookup(key))
            same_rows([] if row is None else [row], [each for each in fresh if self.has_key(each, key)])
            for each in told:
                assert [event.is_winner for event in each.events].count(True) == (row is not None)
                assert not [event for event in each.events if "do not explain" in event.effect]

    def all_keys(self) -> list[dict[str, Any]]:
        rows = self.table.to_arrow(include_uncompacted=True).to_pylist()
        for delta in self.table.deltas():
            rows += storage.download_delta(delta, root=self.table.lake.root).to_pylist()
        keys = [{name: row[name] for name in self.keys} for row in rows if set(self.keys) <= set(row)]
        return list({comparable(key): key for key in keys}.values())

    def has_key(self, row: dict[str, Any], key: dict[str, Any]) -> bool:
        return comparable({name: row[name] for name in self.keys}) == comparable(key)


@settings(max_examples=20)
@given(
    histories(with_partitions=False, max_writes=5, max_rows=4).filter(lambda made: explainable(made[0])),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), min_size=6, max_size=6),
)
def test_what_is_told_of_a_key_ends_with_the_row_that_is_there(
    history: tuple[TableSettings, list[Write]], steps: list[tuple[str, int]]
) -> None:
    made, writes = history
    life = Life(made)
    for write, (what, choice) in zip(writes, steps, strict=False):
        write.write_to(life.table)
        with contextlib.suppress(siltstone.InvalidInputError, siltstone.CorruptionError):
            life.step(what, choice)  # e.g. deltas that a step would have to read are trimmed
        life.check()


def explainable(made: TableSettings) -> bool:
    return bool(made.primary_keys) and made.drop_duplicates
