"""The options of `format("siltstone")`: honoured or refused, never ignored."""

import datetime
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from siltstone.change_writes import ChangeOptions
from siltstone.errors import InvalidInputError
from siltstone.model import Idempotency
from siltstone.rounds.request import Request
from siltstone.rounds.session import run_session
from siltstone.rows.job import Settings
from siltstone.rows.merge import run_here
from siltstone.spark import source as source_module
from siltstone.spark.frames import spark_schema
from siltstone.spark.options import (
    CHANGE_NAMES,
    NAMES,
    WRITE_NAMES,
    ReadOptions,
    WriteOptions,
    read_options,
    write_options,
)
from siltstone.spark.source import SiltstoneReader
from siltstone.table.completion import compacted_partition
from siltstone.testing.oracle import same_rows
from tests.unit.rounds.compaction import make_table, rows

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
PLACE = {"root": "memory://options", "path": "shop.orders"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**PLACE, "asof": "1"}, r"unknown option asof; use .*did you mean as_of\?"),
        ({**PLACE, "colums": "id"}, r"did you mean columns\?"),
        ({**PLACE, "include_uncompcted": "true"}, "did you mean include_uncompacted"),
        ({**PLACE, "mergeschema": "true"}, "unknown option mergeschema; use root, table, columns, as_of, fresh"),
        ({**PLACE, "paths": '["a.b", "c.d"]'}, "unknown option paths"),
        ({**PLACE, "as_of": "5 days"}, "'5 days' is neither a position, nor a time, nor a tag"),
        ({**PLACE, "as_of": "-1"}, "'-1' is neither"),
        ({**PLACE, "fresh": "yes"}, "fresh is 'yes'; use true or false"),
        ({**PLACE, "fresh": "true", "include_uncompacted": "false"}, "fresh is 'true' and also 'false'"),
        ({**PLACE, "table": "shop.other"}, "table is 'shop.orders' and also 'shop.other'"),
        ({**PLACE, "columns": '["id"'}, "is not valid JSON"),
        ({**PLACE, "columns": "[1]"}, "use a list of names"),
        ({"root": "memory://options"}, "table is missing; write .option"),
        ({"path": "shop.orders"}, "root is missing; write .option"),
        ({}, "root is missing.*CREATE TABLE name USING siltstone OPTIONS"),
    ],
)
def test_wrong_options_are_refused_with_what_to_write(
    given: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SILTSTONE_ROOT", raising=False)
    with pytest.raises(InvalidInputError, match=message):
        read_options(given)


def test_options_say_what_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = ReadOptions("memory://options", "shop.orders")
    assert read_options(PLACE) == plain
    assert read_options({"root": "memory://options", "table": "shop.orders", "fresh": "False"}) == plain
    monkeypatch.setenv("SILTSTONE_ROOT", "memory://options")
    assert read_options({"table": "shop.orders", "path": "shop.orders"}) == plain
    assert read_options({**PLACE, "columns": "id, note"}).columns == ("id", "note")
    assert read_options({**PLACE, "columns": '["a,b", "[c"]'}).columns == ("a,b", "[c")
    assert read_options({**PLACE, "include_uncompacted": "TRUE"}).fresh is True
    assert read_options({**PLACE, "as_of": "12"}).as_of == 12
    noon = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
    for text in ("2026-05-01T12:00:00", "2026-05-01T12:00:00Z", "2026-05-01T14:00+02:00"):
        assert read_options({**PLACE, "as_of": text}).as_of == noon


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tipe": "delete"}, r"unknown option tipe; use .*did you mean type\?"),
        ({"fresh": "true"}, "unknown option fresh; use root, table, type"),
        ({"idempotency": "job"}, "'job' is not of the form app:batch"),
        ({"idempotency": ":1"}, "is not of the form app:batch"),
        ({"idempotency": "job:-1"}, "is not of the form app:batch"),
        ({"app_id": "x"}, "app_id is for streaming queries; for one write use .*idempotency"),
        ({"format": "xml"}, "format is 'xml'; use debezium, dms"),
        ({"format": "debezium", "op_column": "x"}, "leave out op_column; change events tell it themselves"),
        ({"format": "debezium", "times": "s"}, "times 's' is neither ms, us or ns"),
        ({"decimals": "text"}, "decimals is for change events; name their format"),
        ({"partitions": "present"}, "partitions goes with .*overwrite"),
        ({"evolve": "no"}, "evolve is 'no'; use true or false"),
        ({"path": "orders"}, r"table 'orders': .*use namespace\.table"),
        ({"path": ""}, "table is missing; write .*save"),
    ],
)
def test_wrong_options_of_a_write_are_refused_with_what_to_write(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        write_options({**PLACE, **given}, is_stream=False)


def test_options_say_what_a_write_means() -> None:
    plain = WriteOptions("memory://options", "shop.orders")
    assert write_options({**PLACE, "checkpointlocation": "x", "queryname": "q"}, is_stream=True) == replace(
        plain, checkpoint="x"
    )
    job = Idempotency(app_id="a:b", batch_id=17)
    assert write_options({**PLACE, "idempotency": "a:b:17"}, is_stream=False) == replace(plain, idempotency=job)
    given = {**PLACE, "type": "delete", "delete_columns": "a, b", "evolve": "FALSE"}
    expected = replace(
        plain, type="delete", delete_columns=("a", "b"), evolve=False, changes=ChangeOptions(evolve=False)
    )
    assert write_options(given, is_stream=False) == expected
    events = write_options({**PLACE, "format": "debezium", "times": "us,at=ms", "decimals": "text"}, is_stream=True)
    assert (events.format, events.changes) == (
        "debezium",
        ChangeOptions(decimals="text", times={"*": "us", "at": "ms"}),
    )
    assert write_options(PLACE, is_stream=False, overwrite=True).overwrite == "table"
    assert write_options({**PLACE, "partitions": "present"}, is_stream=False, overwrite=True).overwrite == "partitions"
    with pytest.raises(InvalidInputError, match="idempotency is for one write"):
        write_options({**PLACE, "idempotency": "a:1"}, is_stream=True)


@pytest.mark.parametrize(
    ("section", "names"), [("## Read options", NAMES), ("## Write options", (*WRITE_NAMES, *CHANGE_NAMES))]
)
def test_the_page_lists_exactly_the_options_there_are(section: str, names: tuple[str, ...]) -> None:
    options = PAGE.read_text(encoding="utf-8").partition(section)[2].partition("##")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)) == names


def test_what_a_task_is_sent_does_not_grow_with_the_table(local_root: str) -> None:
    table = make_table(local_root, "shop.orders")
    table.write(rows(range(2000), "a"))
    (source,) = table._sources()
    settings = Settings(bucket_rows=20)
    run_session(Request(source, compacted_partition(source), ("id",), local_root, settings=settings), run_here)
    table.write(rows(range(2000), "b"))
    reader = SiltstoneReader(ReadOptions(local_root, table.name, fresh=True), spark_schema(table.schema))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "merge_tasks", lambda job, is_full: 1 << 20)
        sent, partitions = pickle.dumps(reader), reader.partitions()
    assert len(partitions) > 50
    assert max(len(pickle.dumps(partition)) for partition in partitions) < 300
    received: SiltstoneReader = pickle.loads(sent)
    found = [row for partition in partitions for batch in received.read(partition) for row in batch.to_pylist()]
    same_rows(found, table.scan(fresh=True).to_arrow().to_pylist())


def test_what_cannot_be_read_is_said_where_spark_asks_for_partitions(local_root: str) -> None:
    make_table(local_root, "shop.orders")
    options = ReadOptions(local_root, "shop.orders")
    reader = SiltstoneReader(options, StructType([StructField("id", StringType())]))
    pickle.dumps(reader)
    with pytest.raises(InvalidInputError, match="but Spark expects string"):
        reader.partitions()
