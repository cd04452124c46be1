"""Columns by id: renamed, dropped and added again without writing a file anew; and tables that take no new ones."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import siltstone
from siltstone.catalog.main import delta_stream
from siltstone.errors import ConflictError, CorruptionError, InvalidInputError
from siltstone.log.batch_log import BatchFolder
from siltstone.objects import open_objects
from siltstone.storage import object_store as storage
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import MAJOR, MINOR, compact, compacted, completion_of, only_partition


@pytest.fixture
def people(local_root: str) -> siltstone.Table:
    table = siltstone.open(local_root).create_table(
        "crm.people", schema={"id": "int64", "name": "string", "age": "int32"}, primary_keys=["id"]
    )
    table.write(rows([1, 2], name=["Ann", "Bob"], age=[30, 40]))
    return table


def rows(ids: list[int], **columns: list[Any]) -> pa.Table:
    types = {"age": pa.int32(), "years": pa.int32()}
    named = {name: pa.array(values, types.get(name)) for name, values in columns.items()}
    return pa.table({"id": pa.array(ids, pa.int64()), **named})


def shown(table: siltstone.Table, **more: Any) -> list[dict[str, Any]]:
    return sorted(table.to_arrow(**more).to_pylist(), key=lambda row: int(row["id"]))


def parquet_ids(table: siltstone.Table, uri: str) -> dict[str, int | None]:
    schema = pq.ParquetFile(f"{table.lake.root}/{uri}").schema_arrow
    found = {field.name: (field.metadata or {}).get(b"PARQUET:field_id") for field in schema}
    return {name: None if text is None else int(text) for name, text in found.items()}


def test_every_column_has_an_id_that_parquet_files_carry(people: siltstone.Table) -> None:
    assert [(column.name, column.id) for column in people.version.fields] == [("id", 1), ("name", 2), ("age", 3)]
    (delta,) = people.deltas()
    assert parquet_ids(people, delta.manifest.entries[0].uri) == {"id": 1, "name": 2, "age": 3}
    compact(people)
    assert parquet_ids(people, completion_of(people).files[0].uri) == {"id": 1, "name": 2, "age": 3}


def test_a_column_that_a_write_adds_gets_the_next_id(people: siltstone.Table) -> None:
    people.write(rows([3], name=["Cay"], age=[50], city=["Ulm"]))
    assert people.version.fields[-1].id == 4
    compact(people, MAJOR)
    assert parquet_ids(people, completion_of(people).files[0].uri)["city"] == 4


def test_a_renamed_column_keeps_its_values_id_and_name_in_files(people: siltstone.Table) -> None:
    compact(people)
    people.write(rows([3], name=["Cay"], age=[50]))
    people.alter(rename_columns={"age": "years"})
    people.write(rows([2], name=["Bob"], years=[41]))
    expected = [
        {"id": 1, "name": "Ann", "years": 30},
        {"id": 2, "name": "Bob", "years": 41},
        {"id": 3, "name": "Cay", "years": 50},
    ]
    assert shown(people, include_uncompacted=True) == expected
    compact(people, MAJOR)
    assert shown(people) == expected
    assert people.lookup({"id": 2}) == [expected[1]]
    assert parquet_ids(people, completion_of(people).files[0].uri) == {"id": 1, "name": 2, "age": 3}
    assert people.fsck(deep=True) == []


def test_a_renamed_key_still_finds_its_rows(people: siltstone.Table) -> None:
    compact(people)
    people.alter(rename_columns={"id": "person"})
    people.write(pa.table({"person": pa.array([2], pa.int64()), "name": ["Bea"], "age": pa.array([1], pa.int32())}))
    compact(people)
    assert people.version.primary_keys == ["person"]
    assert people.lookup({"person": 2}) == [{"person": 2, "name": "Bea", "age": 1}]
    assert people.to_arrow().num_rows == 2
    (told,) = people.explain_key({"person": 2})
    assert told.row == {"person": 2, "name": "Bea", "age": 1}


def test_two_columns_can_swap_their_names(people: siltstone.Table) -> None:
    people.alter(add_columns={"nick": "string"})
    people.alter(rename_columns={"name": "nick", "nick": "name"})
    assert shown(people, include_uncompacted=True)[0] == {"id": 1, "nick": "Ann", "age": 30, "name": None}


def test_a_dropped_column_is_gone_and_one_of_its_name_starts_empty(people: siltstone.Table) -> None:
    compact(people)
    people.alter(drop_columns=["age"])
    assert shown(people) == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
    people.write(rows([2], name=["Bob"], age=[7]))
    expected = [{"id": 1, "name": "Ann", "age": None}, {"id": 2, "name": "Bob", "age": 7}]
    assert shown(people, include_uncompacted=True) == expected
    compact(people)
    assert shown(people) == expected
    again = people.version.fields[-1]
    assert (again.name, again.id, again.name_in_files) == ("age", 4, "age_4")
    assert people.fsck(deep=True) == []


def test_a_column_may_come_back_with_another_type(people: siltstone.Table) -> None:
    compact(people)
    people.alter(drop_columns=["age"])
    people.alter(add_columns={"age": "string"})
    people.write(pa.table({"id": pa.array([1], pa.int64()), "name": ["Ann"], "age": ["thirty"]}))
    compact(people, MAJOR)
    assert [row["age"] for row in shown(people)] == ["thirty", None]


def test_a_delete_by_a_column_holds_though_the_column_was_dropped_before_the_round(people: siltstone.Table) -> None:
    people.write(pa.table({"age": pa.array([40], pa.int32())}), type="delete", delete_columns=["age"])
    people.alter(drop_columns=["age"])
    compact(people, last_stream_position=1)
    assert shown(people) == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}]
    compact(people, MAJOR)
    assert shown(people) == [{"id": 1, "name": "Ann"}]
    people.write(rows([5], name=["Eve"]))
    compact(people, MAJOR)
    assert [column.name for column in completion_of(people).fields] == ["id", "name"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop_columns": ["id"]}, "primary keys"),
        ({"drop_columns": ["agee"]}, "'agee' is not a column"),
        ({"drop_columns": ["age", "age"]}, "twice"),
        ({"rename_columns": {"agee": "x"}}, "'agee' is not a column"),
        ({"rename_columns": {"age": "name"}}, "differ only in case or not at all"),
        ({"rename_columns": {"age": "NAME"}}, "differ only in case or not at all"),
        ({"rename_columns": {"age": " "}}, "empty name"),
        ({"rename_columns": {"age": "_siltstone_x"}}, "reserved"),
    ],
)
def test_changes_of_columns_that_make_no_sense_are_refused(
    people: siltstone.Table, change: dict[str, Any], message: str
) -> None:
    before = people.version
    with pytest.raises(InvalidInputError, match=message):
        people.alter(**change)
    assert people.version == before


def test_a_table_cannot_lose_all_its_columns(local_root: str) -> None:
    lines = siltstone.open(local_root).create_table("web.lines", schema={"line": "string"})
    with pytest.raises(InvalidInputError, match="cannot drop all columns"):
        lines.alter(drop_columns=["line"])


def test_columns_of_documents_are_fixed(local_root: str) -> None:
    docs = siltstone.open(local_root).create_document_table("shop.reviews")
    with pytest.raises(InvalidInputError, match="documents"):
        docs.table.alter(rename_columns={"delta": "text"})


class TestWritesThatMeetAChangeOfColumns:
    def staged(self, table: siltstone.Table, data: pa.Table) -> Any:
        root = table.lake.root
        stream = delta_stream(table.name, root=root)
        deltas = storage.stage_deltas(data, stream, root=root)
        return lambda: storage.commit_deltas(deltas, stream, root=root)

    def test_values_of_a_column_renamed_meanwhile_arrive_under_its_new_name(self, people: siltstone.Table) -> None:
        commit = self.staged(people, rows([3], name=["Cay"], age=[50]))
        people.alter(rename_columns={"age": "years"})
        commit()
        assert shown(people, include_uncompacted=True)[2] == {"id": 3, "name": "Cay", "years": 50}

    def test_values_of_a_column_dropped_meanwhile_are_refused(self, people: siltstone.Table) -> None:
        commit = self.staged(people, rows([3], name=["Cay"], age=[50]))
        people.alter(drop_columns=["age"])
        with pytest.raises(ConflictError, match="'age' was dropped while this was being written"):
            commit()

    def test_a_new_column_whose_name_another_column_took_is_refused(self, people: siltstone.Table) -> None:
        commit = self.staged(people, rows([3], name=["Cay"], age=[50], years=[1]))
        people.alter(rename_columns={"age": "years"})
        with pytest.raises(ConflictError, match="'years' became another one"):
            commit()

    def test_a_new_column_that_came_and_went_meanwhile_is_refused(self, people: siltstone.Table) -> None:
        commit = self.staged(people, rows([3], name=["Cay"], age=[50], years=[1]))
        people.alter(add_columns={"years": "int32"})
        people.alter(drop_columns=["years"])
        with pytest.raises(ConflictError, match="'years' was dropped or renamed"):
            commit()

    def test_two_writers_may_add_the_same_column(self, people: siltstone.Table) -> None:
        first = self.staged(people, rows([3], name=["Cay"], age=[50], years=[1]))
        second = self.staged(people, rows([4], name=["Dan"], age=[60], years=[2]))
        people.alter(add_columns={"note": "string"})
        first()
        second()
        found = [row["years"] for row in shown(people, include_uncompacted=True)]
        assert found == [None, None, 1, 2]


def test_an_operation_column_may_have_the_name_that_a_column_has_in_files(people: siltstone.Table) -> None:
    people.alter(rename_columns={"age": "years"})
    changes = rows([1, 2], name=["Ann", "Bob"], years=[31, 0]).append_column("age", pa.array(["u", "d"]))
    people.write(changes, op_column="age")
    expected = [{"id": 1, "name": "Ann", "years": 31}]
    assert shown(people, include_uncompacted=True) == expected
    compact(people)
    assert shown(people) == expected


def test_a_table_filled_from_another_one_takes_columns_by_todays_names(local_root: str) -> None:
    lake = siltstone.open(local_root)
    schema = {"id": "int64", "a": "int64", "b": "int64"}
    source = lake.create_table("old.rows", schema=schema, primary_keys=["id"])
    source.write(pa.table({"id": [1, 2], "a": [10, 20], "b": [100, 200]}))
    compact(source)
    source.alter(rename_columns={"a": "b", "b": "a"})
    source.alter(drop_columns=["b"])
    source.write(pa.table({"id": [2], "a": [201]}))
    compact(source)
    target = lake.create_table("new.rows", schema={"id": "int64", "a": "int64", "b": "int64"}, primary_keys=["id"])
    target.write(pa.table({"id": [3], "a": [300], "b": [3]}))
    compact(target, source=compacted(source), rebase_source=only_partition(target), rebase_high_watermark=0)
    compact(target)
    same_rows(
        target.to_arrow().to_pylist(),
        [{"id": 1, "a": 100, "b": None}, {"id": 2, "a": 201, "b": None}, {"id": 3, "a": 300, "b": 3}],
    )


class TestStrictTables:
    def test_a_typing_error_in_a_column_is_refused_with_the_column_that_was_meant(
        self, people: siltstone.Table
    ) -> None:
        with pytest.raises(InvalidInputError, match=r"'nmae' is not in the table .*did you mean name"):
            people.write(rows([3], name=["Cay"], age=[50], nmae=["x"]), evolve=False)
        assert len(people.deltas()) == 1

    def test_a_wider_type_is_refused(self, people: siltstone.Table) -> None:
        wide = pa.table({"id": pa.array([3], pa.int64()), "name": ["Cay"], "age": pa.array([1 << 40], pa.int64())})
        with pytest.raises(InvalidInputError, match="'age' is int32 in the table"):
            people.write(wide, evolve=False)

    def test_a_table_can_be_strict_by_itself_and_be_altered_all_the_same(self, people: siltstone.Table) -> None:
        people.alter(properties={"schema_evolution": "strict"})
        with pytest.raises(InvalidInputError, match="strict"):
            people.write(rows([3], name=["Cay"], age=[50], city=["Ulm"]))
        people.alter(add_columns={"city": "string"})
        people.write(rows([3], name=["Cay"], age=[50], city=["Ulm"]))
        assert shown(people, include_uncompacted=True)[2]["city"] == "Ulm"

    def test_a_write_that_was_staged_before_the_table_became_strict_is_refused(self, people: siltstone.Table) -> None:
        commit = TestWritesThatMeetAChangeOfColumns().staged(people, rows([3], name=["Cay"], age=[50], city=["Ulm"]))
        people.alter(properties={"schema_evolution": "strict"})
        with pytest.raises(ConflictError, match="became strict"):
            commit()


def test_a_program_that_knows_only_the_first_format_refuses_a_newer_lake(people: siltstone.Table) -> None:
    root = people.lake.root
    earlier = BatchFolder(open_objects(root), "catalog", version=1)
    with pytest.raises(CorruptionError, match="maximum supported log version is v1, but encountered v3"):
        list(earlier.read_lines("0"))


def test_a_minor_round_after_a_drop_leaves_the_files_of_before_as_they_are(people: siltstone.Table) -> None:
    compact(people)
    (before,) = completion_of(people).files
    people.alter(drop_columns=["age"])
    people.write(rows([9], name=["Zoe"]))
    compact(people, MINOR)
    assert before.uri in [file.uri for file in completion_of(people).files]
    assert shown(people) == [{"id": 1, "name": "Ann"}, {"id": 2, "name": "Bob"}, {"id": 9, "name": "Zoe"}]
