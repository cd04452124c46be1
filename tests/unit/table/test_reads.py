"""Reads of a table: which columns, which rows, and one state of it whatever others do meanwhile."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

import siltstone
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.merge import run_here
from siltstone.table.completion import compacted_partition
from siltstone.testing import faults
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import compact, make_table, rows

READS: dict[str, dict[str, Any]] = {
    "as compacted": {},
    "with deltas since": {"include_uncompacted": True},
    "as of a position": {"as_of": 2},
}
every_read = pytest.mark.parametrize("how", READS.values(), ids=list(READS))


@pytest.fixture
def table(local_root: str) -> siltstone.Table:
    """A table of three rows, one of them dead in a deletion vector, and a column that is newer than its round."""
    table = make_table(local_root)
    table.write(rows([1, 2, 3, 4]))
    table.write(pa.table({"id": [4]}), "delete")
    compact(table)
    table.alter(add_columns={"more": "int64"})
    return table


@every_read
def test_a_column_that_is_newer_than_the_last_round_is_null_in_every_row(
    table: siltstone.Table, how: dict[str, Any]
) -> None:
    same_rows(table.to_arrow(["more"], **how), [{"more": None}] * 3)
    same_rows(table.to_arrow(["more", "id"], **how), [{"more": None, "id": number} for number in (1, 2, 3)])
    same_rows(table.lookup({"id": 2}), [{"id": 2, "v": "2", "more": None}])


@every_read
def test_a_read_of_no_columns_has_all_rows(table: siltstone.Table, how: dict[str, Any]) -> None:
    read = table.to_arrow([], **how)
    assert (read.num_rows, read.num_columns) == (3, 0)
    assert sum(batch.num_rows for batch in table.to_batches([], **how)) == 3


def test_a_reader_knows_its_columns_before_it_has_read(table: siltstone.Table) -> None:
    assert table.to_batches(["more", "id"]).schema == pa.schema([("more", pa.int64()), ("id", pa.int64())])


@every_read
@pytest.mark.parametrize("columns", [["nope"], ["id", "mroe"], ["id", "id"]])
def test_a_column_that_is_not_there_is_named_with_those_that_are(
    table: siltstone.Table, how: dict[str, Any], columns: list[str]
) -> None:
    message = {
        "nope": "'nope' is not a column; there are id, v, more$",
        "mroe": "'mroe' is not a column; there are id, v, more; did you mean more",
        "id": "twice",
    }[columns[-1]]
    for read in (table.to_arrow, table.to_batches):
        with pytest.raises(siltstone.InvalidInputError, match=message):
            read(columns, **how)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ({"idx": 1}, "'idx' is not in the primary key \\(id\\); did you mean id"),
        ({}, "lacks id; give a value"),
        ({"id": 1, "v": ""}, "'v' is not in the primary key"),
        ({"id": "x"}, "does not fit the types"),
        ({"id": 2**63}, "does not fit the types"),
    ],
)
def test_a_key_that_cannot_be_one_is_refused_by_name(
    table: siltstone.Table, key: dict[str, object], message: str
) -> None:
    with pytest.raises(siltstone.InvalidInputError, match=message):
        table.lookup(key)


def test_a_key_that_only_the_widened_type_holds_is_not_in_older_partitions(local_root: str) -> None:
    table = siltstone.open(local_root).create_table(
        "shop.orders",
        schema={"zone": "string", "id": "int32", "part": "decimal(4,1)", "size": "float32"},
        primary_keys=["zone", "id", "part", "size"],
        partition_keys=["zone"],
    )

    def row(zone: str, id_: int, part: str, size: float, kinds: list[pa.DataType]) -> pa.Table:
        keys = zip((id_, pa.scalar(part).cast(kinds[1]).as_py(), size), kinds, strict=True)
        return pa.table([[zone], *(pa.array([value], kind) for value, kind in keys)], ["zone", "id", "part", "size"])

    narrow = [pa.int32(), pa.decimal128(4, 1), pa.float32()]
    wide = [pa.int64(), pa.decimal128(12, 4), pa.float64()]
    old, new = row("eu", 1, "1.5", 0.5, narrow), row("us", 2**40, "123456.7891", 0.1, wide)
    for data in (old, new):
        table.write(data)
        compact_all(table)
    for kept in (*old.to_pylist(), *new.to_pylist()):
        same_rows(table.lookup(kept), [row for row in table.to_arrow().to_pylist() if row["zone"] == kept["zone"]])
    for gone in ({"id": 2**40}, {"part": new.to_pylist()[0]["part"]}, {"size": 0.1}):
        assert table.lookup({**old.to_pylist()[0], **gone}) == []
    with pytest.raises(siltstone.InvalidInputError, match="does not fit"):
        table.lookup({**old.to_pylist()[0], "id": 2**63})


def compact_all(table: siltstone.Table, zones: Sequence[str] = ("eu", "us", "asia")) -> None:
    for source in table._sources():
        if source.partition_values[0] in zones:
            keys = tuple(table.version.primary_keys)
            run_session(Request(source, compacted_partition(source), keys, table.lake.root), run_here)


def write_more(table: siltstone.Table) -> None:
    """Change all that a write can: rows of two partitions, one of them new, a new column, a wider type."""
    table.write(
        pa.table({"zone": ["eu", "us"], "id": pa.array([1, 2**40], pa.int64()), "v": ["new", "new"], "more": [1, 2]})
    )


def compact_one(table: siltstone.Table) -> None:
    compact_all(table, ["us"])  # partitions are compacted each by itself: two would not change at once


@every_read
@pytest.mark.parametrize("meanwhile", [[write_more], [write_more, compact_one]], ids=["a write", "and a round"])
def test_a_read_is_one_state_of_the_table_whatever_others_do_meanwhile(
    new_root: Callable[[str], str], how: dict[str, Any], meanwhile: list[Callable[[siltstone.Table], None]]
) -> None:
    for at_call in itertools.count(1):
        table = siltstone.open(new_root("memory")).create_table(
            "shop.orders",
            schema={"zone": "string", "id": "int32", "v": "string"},
            primary_keys=["zone", "id"],
            partition_keys=["zone"],
        )
        for value in ("a", "b", "c"):
            table.write(pa.table({"zone": ["eu", "asia"], "id": pa.array([1, 2], pa.int32()), "v": [value, value]}))
            if value != "c":
                compact_all(table)
        states = [table.to_arrow(**how)]

        def act(table: siltstone.Table = table, states: list[pa.Table] = states) -> None:
            for step in meanwhile:
                step(table)
                states.append(table.to_arrow(**how))

        with faults(table.lake.root, at_call=at_call, kind="meet", act=act) as store:
            found = table.to_arrow(**how)
        if len(states) == 1:
            assert at_call > store.calls > 5
            return
        assert any(found.equals(state) for state in states), (found, states)
