"""Documents on Spark: written from frames, compacted like in this process, read as rows that SQL looks into."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.unit.documents.naming import t
from tests.unit.documents.tables import NAME, ROOMY, Written, at, change_id, compact, kinds, make, rounds

import siltstone
from siltstone import clock
from siltstone.documents.record import Change, change_id_at, to_ms
from siltstone.errors import AlreadyExistsError, InvalidInputError
from siltstone.spark.tasks import spark_engine

Updates = list[tuple[str, str, list[str], str | None]]
COLUMNS = "key string, delta string, tags array<string>, change_id string"


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Two hundred documents of five deltas each, written from a data frame."""
    written = make(str(tmp_path_factory.mktemp("lake")))
    updates = []
    for number in range(1000):
        key = f"r{number % 200}"
        text = f'{{..,"n":{number},"s":(..,"x{number % 3}")}}' if number % 7 else "~"
        updates.append((key, text, ["etl"] if number % 2 else [], change_id_at(at(1), ticks=number)))
    assert written.docs.update_many(spark.createDataFrame(updates, COLUMNS)) == len(updates)
    for key, text, tags, id_ in updates:
        written.note(key, Change(id_, text, tags))
    return written


def test_rounds_on_spark_do_what_they_do_in_this_process(spark: SparkSession, written: Written) -> None:
    few = replace(ROOMY, bucket_rows=100)
    for second, done in ((30, {"added": 200, "deleted": 0}), (50, {"added": 0, "deleted": 1000})):
        assert rounds(compact(written.docs, second, few, engine=spark_engine(spark))) == [done]
        written.check()
    assert kinds(written.docs, "r17") == "C"
    written.write(60, "r17", '{..,"last":true}')
    assert rounds(compact(written.docs, 80, few, engine=spark_engine(spark))) == [{"added": 1, "deleted": 0}]
    assert written.docs.compact(at(81), spark).rounds == []
    (one,) = written.docs.compact(at(95), spark).rounds
    assert one.accounting.deleted_rows == 2
    (again,) = written.docs.table.compact(full=True, spark=spark)[0].rounds
    assert again.accounting.live_rows == 200
    written.check()


def test_a_frame_with_two_deltas_under_one_change_id_is_refused_and_the_same_one_counts_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    written = make(str(tmp_path))
    docs = written.docs
    written.write(1, "a", '{"n":1}')
    same: Updates = [("a", '{"n":1}', [], change_id(1))]
    other: Updates = [
        ("b", '{"n":1}', ["x"], change_id(2)),
        ("b", '{"n":1}', ["x"], change_id(2)),
        ("b", "~", [], None),
    ]
    for bad in (
        [*other, ("b", '{"n":2}', ["x"], change_id(2))],
        [*other, ("a", '{"n":1}', ["x"], change_id(1))],
    ):
        with pytest.raises(AlreadyExistsError, match="never changes"):
            docs.update_many(spark.createDataFrame(bad, COLUMNS))
    assert len(docs.table.deltas()) == 1
    assert docs.update_many(spark.createDataFrame([*same, *other], COLUMNS)) == 2
    assert (docs.get("a")["~version"], docs.get("b")["~version"]) == (1, 2)


class FarAhead(clock.SystemClock):
    """A clock that no executor has."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


def test_executors_take_the_time_of_change_ids_from_the_writer(spark: SparkSession, tmp_path: Path) -> None:
    docs = make(str(tmp_path)).docs
    with clock.replaced(FarAhead()):
        before_ms = clock.now_ms()
        docs.update_many(spark.createDataFrame([("a", '{"n":1}'), ("b", '{"n":2}')], ["key", "delta"]))
    rows = docs.table.to_arrow(include_uncompacted=True)
    assert all(to_ms(change_id) >= before_ms for change_id in rows.column("change_id").to_pylist())


def test_an_export_under_a_hold_stays_the_same_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    written = make(str(tmp_path))
    written.write(1, "a", '{"n":1}')
    written.write(3, "a", '{..,"m":1}')
    held = written.docs.hold(since=at(5), until=at(7200))
    before = [written.expected("a")]
    written.write(2, "a", '{"n":2}')
    written.compact(30, engine=spark_engine(spark))
    assert list(written.docs.scan(spark, hold=held)) == before


def test_documents_are_rows_that_sql_looks_into(spark: SparkSession, written: Written) -> None:
    frame = written.docs.to_spark(spark, include_deleted=True)
    expected = [written.expected(key) for key in written.changes]
    assert frame.count() == len(expected)
    assert frame.where("deleted").count() == sum(bool(each["~deleted"]) for each in expected)
    frame.createOrReplaceTempView("reviews")
    (row,) = spark.sql(
        "select get_json_object(content, '$.s[0]') as s, version, signature, date_format(last_update_at, 'yyyy') as year "
        "from reviews where key = 'r6'"
    ).collect()
    document = written.expected("r6")
    assert (row.s, row.version, row.signature) == (document["s"][0], document["~version"], document["~signature"])  # type: ignore[index]
    assert str(document["~lastUpdateAt"]).startswith(row.year)
    found = {document["~id"]: document for document in written.docs.scan(spark, include_deleted=True)}
    assert found == {document["~id"]: document for document in expected}


def test_rounds_on_spark_keep_history_and_convert_imported_legacy_records(spark: SparkSession, tmp_path: Path) -> None:
    written = make(str(tmp_path), keep_history=True)
    engine, few = spark_engine(spark), replace(ROOMY, bucket_rows=8)
    for number in range(30):
        written.write(1, f"r{number}", f'{{"n":{number}}}', "x")
        written.write(2, f"r{number}", '{..,"a":1}')
    legacy = {"id": t(5), "count": 2, "first": t(1), "cutoff": t(3), "cutoff_signature": "ab" * 16}
    deltas = [{"id": t(3), "delta": {"n": 1}}, {"id": t(6), "delta": '{..,"m":2}', "tags": ["x"]}]
    written.docs.import_documents([{"key": "old", "deltas": deltas, "compactions": [legacy]}])
    before = written.docs.get("old")
    assert (before["n"], before["m"], before["~version"]) == (1, 2, 4)
    for second in (20, 40, 60):
        compact(written.docs, second, few, engine=engine)
        written.check_history()
        assert written.docs.get("old") == before
        found = {str(each["~id"]): each for each in written.docs.scan(spark)}
        assert found == {"old": before, **{key: written.expected(key) for key in written.changes}}
    assert {kinds(written.docs, key) for key in ("old", *written.changes)} == {"C"}
    assert [(entry.version, entry.content) for entry in written.docs.history("old")] == [
        (3, {"n": 1}),
        (4, {"n": 1, "m": 2}),
    ]
    history = (
        written.docs.to_spark(spark, history=True).toArrow().sort_by([("key", "ascending"), ("version", "ascending")])
    )
    expected = written.docs.to_dataset(history=True).scanner().to_table()
    assert history.to_pylist() == expected.sort_by([("key", "ascending"), ("version", "ascending")]).to_pylist()
    assert history.num_rows == 62
    assert written.docs.fsck(deep=True) == []


def test_a_bad_update_in_a_frame_is_named_and_nothing_is_written(spark: SparkSession, tmp_path: Path) -> None:
    docs = siltstone.open(tmp_path).create_document_table(NAME)
    with pytest.raises(InvalidInputError, match="update 1, key 'k'"):
        docs.update_many(spark.createDataFrame([("k", '{"a":')], "key string, delta string"))
    with pytest.raises(InvalidInputError, match="updates have the columns key and delta"):
        docs.update_many(spark.createDataFrame([("k", "~")], "key string, detla string"))
    with pytest.raises(InvalidInputError, match="is complete up to"):
        docs.update_many(spark.createDataFrame([("k", "~", [], change_id(-7200))], COLUMNS))
    assert docs.table.deltas() == []
    assert docs.update_many(spark.createDataFrame([("k", "{}")], "key string, delta string")) == 1
    assert docs.get("k")["~version"] == 1
