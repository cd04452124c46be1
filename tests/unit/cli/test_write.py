import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli

Orders = Callable[..., Cli]


def test_write_tells_position_rows_bytes_files_and_partitions(orders: Orders) -> None:
    cli = orders("--key", "order_id", "--partition-by", "customer", "--unique-within-partition")
    file = cli.file("a.csv", "order_id,customer\n1,a\n2,b\n3,a\n")
    written = cli.json("write", "shop.orders", file)
    assert written["stream_position"] == 1
    assert written["rows"] == 3
    assert written["files"] == 2
    assert written["partitions"] == 2
    assert written["bytes"] > 0
    assert "wrote 3 rows as upsert" in cli("write", "shop.orders", file).stdout


def test_several_files_are_one_delta_in_the_order_given(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    one = cli.file("one.csv", "order_id,customer\n1,first\n")
    two = cli.file("two.jsonl", '{"customer": "second", "order_id": 1}')
    pq.write_table(pa.table({"order_id": [1], "customer": ["third"]}), cli.folder / "three.parquet")
    assert cli.json("write", "shop.orders", two, one, str(cli.folder / "three.parquet"))["files"] == 1
    assert [row["customer"] for row in cli.rows("shop.orders")] == ["second", "first", "third"]
    assert len(cli.json("deltas", "shop.orders")) == 1


def test_files_of_one_delta_agree_on_the_widest_type_of_a_new_column(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    one = cli.file("one.csv", "order_id,score\n1,\n")
    pq.write_table(pa.table({"order_id": [2], "score": pa.array([2.5], pa.float32())}), cli.folder / "two.parquet")
    three = cli.file("three.csv", "score,order_id\n3.25,3\n")
    cli("write", "shop.orders", one, str(cli.folder / "two.parquet"), three)
    assert [row["score"] for row in cli.rows("shop.orders")] == [None, 2.5, 3.25]
    assert Lake(cli.root).table("shop.orders").schema.field("score").type == pa.float64()


def test_files_with_different_columns_are_refused_since_absent_and_null_differ(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    one = cli.file("one.csv", "order_id,customer\n1,x\n")
    two = cli.file("two.csv", "order_id,day\n1,2024-01-01\n")
    message = cli.fails("write", "shop.orders", one, two)
    assert "two.csv" in message
    assert "customer, day" in message


def test_one_bad_file_among_many_writes_nothing(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    good = cli.file("good.csv", "order_id\n" + "".join(f"{i}\n" for i in range(1000)))
    bad = cli.file("bad.csv", "order_id\n1\nx\n")
    message = cli.fails("write", "shop.orders", good, bad)
    assert "bad.csv" in message
    assert "row 3" in message
    assert "'order_id'" in message
    assert "'x'" in message
    assert cli.json("deltas", "shop.orders") == []


def test_a_file_named_twice_is_refused(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("a.csv", "order_id\n1\n")
    assert "twice" in cli.fails("write", "shop.orders", file, file)


def test_deletes_by_key_and_by_other_columns(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("a.csv", "order_id,customer\n1,x\n")
    cli("write", "shop.orders", file, "--type", "delete")
    assert cli.rows("shop.orders") == [{"order_id": 1}]
    cli("write", "shop.orders", file, "--type", "delete", "--delete-columns", "customer, order_id")
    assert cli.rows("shop.orders") == [{"customer": "x", "order_id": 1}]
    shown = cli("deltas", "shop.orders").stdout
    assert "delete on customer, order_id" in shown


def test_a_delete_for_every_partition_counts_its_file_once(orders: Orders) -> None:
    cli = orders("--key", "order_id", "--partition-by", "customer", "--unique-within-partition")
    cli("write", "shop.orders", cli.file("a.csv", "order_id,customer\n1,a\n2,b\n"))
    written = cli.json("write", "shop.orders", cli.file("b.csv", "order_id\n1\n"), "--type", "delete")
    assert (written["rows"], written["files"], written["partitions"]) == (1, 1, 2)


def test_an_operation_column_is_text_and_no_column_of_the_table(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    written = cli.json("write", "shop.orders", cli.file("a.csv", "order_id,op\n1,u\n2,d\n"), "--op-column", "op")
    assert written["new_columns"] == []
    assert "op" not in Lake(cli.root).table("shop.orders").schema.names
    assert cli.rows("shop.orders")[1] == {"order_id": 2, "op": "d"}
    assert "'1'" in cli.fails("write", "shop.orders", cli.file("b.csv", "order_id,op\n1,1\n"), "--op-column", "op")


def test_an_idempotency_id_commits_once(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("a.csv", "order_id\n1\n")
    first = cli.json("write", "shop.orders", file, "--idempotency", "job:a:17")
    again = cli.json("write", "shop.orders", file, "--idempotency", "job:a:17")
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert first["stream_position"] == again["stream_position"]
    assert [delta["idempotency"] for delta in cli.json("deltas", "shop.orders")] == ["job:a:17"]
    assert "before" in cli("write", "shop.orders", file, "--idempotency", "job:a:17", "--dry-run").stdout


def test_a_stream_position_must_be_higher_than_the_newest(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("a.csv", "order_id\n1\n")
    assert cli.json("write", "shop.orders", file, "--stream-position", "40")["stream_position"] == 40
    for dry_run in ([], ["--dry-run"]):
        assert "40" in cli.fails("write", "shop.orders", file, "--stream-position", "40", *dry_run)


def test_standard_input_is_json_lines(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    cli("write", "shop.orders", "-", input='{"order_id": 1, "customer": "ä"}\n\n{"order_id": 2}\n')
    assert cli.rows("shop.orders") == [{"order_id": 1, "customer": "ä"}, {"order_id": 2, "customer": None}]
    cli("write", "shop.orders", "-", "--format", "csv", input="order_id\n7\n")
    assert cli.rows("shop.orders") == [{"order_id": 7}]
    assert "standard input: line 2" in cli.fails(
        "write", "shop.orders", "-", input='{"order_id": 1}\n{"order_id": "x"}'
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "order_id,customer,extra\n1,x,7\n"),
        ("a.jsonl", '{"order_id": 1, "customer": "x", "extra": 7}'),
    ],
)
def test_a_dry_run_says_what_would_happen_and_changes_nothing(orders: Orders, name: str, content: str) -> None:
    cli = orders("--key", "order_id")
    file = cli.file(name, content)
    before = cli.listing()
    planned = cli.json("write", "shop.orders", file, "--dry-run")
    assert cli.listing() == before
    assert planned["dry_run"] is True
    assert planned["stream_position"] is None
    done = cli.json("write", "shop.orders", file)
    for same in ("rows", "bytes", "files", "partitions", "new_columns"):
        assert planned[same] == done[same]
    assert done["new_columns"] == ["extra"]


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_wrong_data_is_refused_with_the_thing_named(orders: Orders, dry_run: list[str]) -> None:
    cli = orders("--key", "order_id")

    def refused(content: str, *options: str) -> str:
        return cli.fails("write", "shop.orders", cli.file("a.csv", content), *options, *dry_run)

    assert "'order_id'" in refused("customer\nx\n")
    assert "'customer'" in refused("order_id,Customer\n1,x\n") or "case" in refused("order_id,Customer\n1,x\n")
    assert "'_siltstone_row'" in refused("order_id,_siltstone_row\n1,1\n")
    assert "'nosuch'" in refused("order_id\n1\n", "--op-column", "nosuch")
    assert "nosuch" in refused("order_id\n1\n", "--type", "delete", "--delete-columns", "nosuch")
    assert "delete columns" in refused("order_id\n1\n", "--delete-columns", "order_id")
    assert "upsert" in refused("order_id,op\n1,d\n", "--type", "append", "--op-column", "op")


def test_a_delete_on_a_table_without_key_needs_columns(orders: Orders) -> None:
    cli = orders()
    assert "delete columns" in cli.fails("write", "shop.orders", cli.file("a.csv", "order_id\n1\n"), "--type", "delete")


def test_wrong_usage_is_told_before_anything_is_read(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    write = ["write", "shop.orders", "nosuch.csv"]
    for wrong in ("job", "job:", ":7", "job:-1", "job:x"):
        assert "--idempotency" in cli.misused(*write, "--idempotency", wrong)
    assert "--stream-position" in cli.misused(*write, "--stream-position", "0")
    assert "--type" in cli.misused(*write, "--type", "merge")
    assert "--format" in cli.misused(*write, "--format", "xml")
    for delimiter in ("ab", "é", '"', "\n"):
        assert "--delimiter" in cli.misused(*write, "--delimiter", delimiter)
    assert "FILE" in cli.misused("write", "shop.orders")


def test_an_unknown_table_is_told_before_files_are_opened(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    assert "did you mean shop.orders?" in cli.fails("write", "shop.order", "nosuch.csv")


def test_files_that_cannot_be_read_are_named(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    write = ["write", "shop.orders"]
    assert "nosuch.csv" in cli.fails(*write, str(cli.folder / "nosuch.csv"))
    assert "is a folder" in cli.fails(*write, str(cli.folder))
    assert "--format" in cli.fails(*write, cli.file("data.txt", "order_id\n1\n"))
    assert "fake.parquet" in cli.fails(*write, cli.file("fake.parquet", "order_id\n1\n"))
    assert "fake.csv.gz" in cli.fails(*write, cli.file("fake.csv.gz", "order_id\n1\n"))
    assert "empty.csv" in cli.fails(*write, cli.file("empty.csv", ""))
    assert "empty.jsonl" in cli.fails(*write, cli.file("empty.jsonl", ""))
    assert "x.parquet.gz" in cli.fails(*write, cli.file("x.parquet.gz", ""))


def test_files_without_rows_commit_an_empty_delta(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    assert cli.json("write", "shop.orders", cli.file("a.csv", "order_id,customer\n"))["rows"] == 0
    assert cli.json("deltas", "shop.orders")[0]["rows"] == 0


def test_deltas_are_listed_by_range_and_limit(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    for position in range(1, 6):
        cli("write", "shop.orders", cli.file("a.csv", f"order_id\n{position}\n"))

    def positions(*options: str) -> list[int]:
        return [delta["stream_position"] for delta in cli.json("deltas", "shop.orders", *options)]

    assert positions() == [1, 2, 3, 4, 5]
    assert positions("--from", "2", "--to", "4") == [2, 3, 4]
    assert positions("--limit", "2") == [4, 5]
    assert positions("--to", "3", "--limit", "1") == [3]
    assert positions("--from", "9") == []
    assert "No such deltas" in cli("deltas", "shop.orders", "--from", "9").stdout
    assert "--limit" in cli.misused("deltas", "shop.orders", "--limit", "0")
    assert "shop.nosuch" in cli.fails("deltas", "shop.nosuch")


def test_deltas_show_every_column_of_a_wide_table_in_a_pipe(orders: Orders) -> None:
    columns = {f"a_rather_long_column_name_{number}": "string" for number in range(60)}
    cli = orders(**columns)
    cli("write", "shop.orders", cli.file("a.jsonl", json.dumps(dict.fromkeys(columns, "x"))))
    line = cli("deltas", "shop.orders").stdout.splitlines()[1]
    assert all(name in line for name in columns)


def test_key_only_deletes_go_into_tables_whose_columns_must_not_be_null(cli: Cli) -> None:
    fields = [{"name": "id", "type": "int64", "nullable": False}, {"name": "v", "type": "string", "nullable": False}]
    cli("table", "create", "shop.strict", "--schema", cli.file("schema.json", json.dumps(fields)), "--key", "id")
    changes = cli.file("changes.jsonl", '{"id": 1, "op": "d"}\n{"id": 2, "v": "b", "op": "u"}\n')
    assert cli.json("write", "shop.strict", changes, "--op-column", "op")["rows"] == 2
    deletes = cli.file("deletes.jsonl", '{"id": 2, "op": "d"}\n')
    for options in (["--dry-run"], []):
        assert cli.json("write", "shop.strict", deletes, "--op-column", "op", *options)["rows"] == 1
    assert cli.rows("shop.strict") == [{"id": 2, "op": "d"}]


@pytest.mark.parametrize("options", [["--dry-run"], []])
def test_deletes_without_a_sort_key_are_warned_of(cli: Cli, options: list[str]) -> None:
    schema = cli.file("schema.json", '{"id": "int64", "at": "int64"}')
    cli("table", "create", "shop.late", "--schema", schema, "--key", "id", "--sort-key", "at")
    changes = cli.file("changes.jsonl", '{"id": 1, "op": "d"}\n{"id": 2, "at": 5, "op": "d"}\n{"id": 3, "op": "u"}\n')
    result = cli("write", "shop.late", changes, "--op-column", "op", *options)
    assert "1 delete has no sort key 'at': older than every row that has one" in result.stderr


@pytest.mark.parametrize("options", [[], ["--op-column", "op"]])
def test_null_lines_of_a_change_stream_are_skipped_and_counted(orders: Orders, options: list[str]) -> None:
    cli = orders("--key", "order_id")
    operation = ', "op": "d"' if options else ""
    file = cli.file("a.jsonl", f'null\n{{"order_id": 1{operation}}}\nnull\n')
    for more in (["--dry-run"], []):
        written = cli.json("write", "shop.orders", file, *options, *more)
        assert (written["rows"], written["null_lines"]) == (1, 2)
    shown = cli("write", "shop.orders", file, *options).stdout
    assert "wrote 1 row as upsert" in shown
    assert "Skipped 2 null lines" in shown


def test_files_of_nothing_but_null_lines_have_no_rows(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    nulls = cli.file("nulls.jsonl", "null\nnull\n")
    written = cli.json("write", "shop.orders", nulls, "--idempotency", "job:1")
    assert (written["rows"], written["null_lines"], written["stream_position"]) == (0, 2, 1)
    one = cli.file("one.jsonl", '{"order_id": 1}\n')
    assert cli.json("write", "shop.orders", nulls, one)["rows"] == 1
    assert cli.rows("shop.orders") == [{"order_id": 1}]


@pytest.mark.parametrize("position", [2**63, 2**80])
def test_positions_that_no_stream_has_are_refused(orders: Orders, position: int) -> None:
    cli = orders("--key", "order_id")
    file = cli.file("a.csv", "order_id\n1\n")
    write = ["write", "shop.orders", file, "--stream-position", str(position)]
    for command in (write, [*write, "--dry-run"]):
        assert f"{position} is not a stream position" in cli.fails(*command)
    cli("write", "shop.orders", file)
    assert f"{position} is not a stream position" in cli.fails("read", "shop.orders", "--as-of", str(position))
    assert f"{position} is not a stream position" in cli.fails("compact", "shop.orders", "--to", str(position))


def test_parquet_files_of_other_kinds_of_numbers_and_encodings_fit_the_table(cli: Cli) -> None:
    schema = cli.file("schema.json", '{"id": "int64", "price": "double", "v": "string"}')
    cli("table", "create", "shop.prices", "--schema", schema, "--key", "id")
    one, two, bad = (str(cli.folder / f"{name}.parquet") for name in ("one", "two", "bad"))
    pq.write_table(pa.table({"id": [1], "price": [2], "v": pa.array(["x"]).dictionary_encode()}), one)
    pq.write_table(pa.table({"id": [2.0], "price": [0.5], "v": pa.array(["y"], pa.string_view())}), two)
    pq.write_table(pa.table({"id": [3], "price": [2**60], "v": ["z"]}), bad)
    cli("write", "shop.prices", one, two)
    assert cli.rows("shop.prices") == [{"id": 1, "price": 2.0, "v": "x"}, {"id": 2, "price": 0.5, "v": "y"}]
    assert "row 1 has 1152921504606846976, which does not fit double exactly" in cli.fails("write", "shop.prices", bad)


def test_the_unnamed_index_of_a_frame_is_left_out_of_its_parquet_file(cli: Cli) -> None:
    frame = pa.table({"id": [1, 2], "v": ["a", "b"]}).to_pandas()
    frame[frame.id > 1].to_parquet(cli.folder / "filtered.parquet")
    frame.set_index("id").to_parquet(cli.folder / "named.parquet")
    for name, ids in (("filtered", [2]), ("named", [1, 2])):
        file = str(cli.folder / f"{name}.parquet")
        cli("table", "create", f"shop.{name}", "--from", file, "--key", "id", "--write")
        assert Lake(cli.root).table(f"shop.{name}").schema.names in (["id", "v"], ["v", "id"])
        assert [row["id"] for row in cli.rows(f"shop.{name}")] == ids


def test_overwrite_replaces_the_table_or_the_partitions_that_are_named(orders: Orders) -> None:
    cli = orders("--key", "order_id", "--partition-by", "customer", "--unique-within-partition")
    cli("write", "shop.orders", cli.file("a.csv", "order_id,customer\n1,a\n2,b\n3,c\n"))
    file = cli.file("b.csv", "order_id,customer\n9,a\n")

    def ids() -> list[int]:
        printed = cli("read", "shop.orders", "--fresh", "--json").stdout
        return sorted(json.loads(line)["order_id"] for line in printed.splitlines())

    dry = cli("write", "shop.orders", file, "--overwrite", "--dry-run").stdout
    assert "Would replace all that was in 3 partitions before." in dry
    cli("write", "shop.orders", file, "--overwrite", "--partition", "present")
    assert ids() == [2, 3, 9]
    cli("write", "shop.orders", file, "--overwrite", "--partition", "customer=a", "--partition", "customer=c")
    assert ids() == [2, 9]
    assert "Replaced all that was in 3 partitions before." in cli("write", "shop.orders", file, "--overwrite").stdout
    assert ids() == [9]
    assert "upsert, overwrites" in cli("deltas", "shop.orders").stdout
    assert "--overwrite" in cli("write", "shop.orders", file, "--partition", "customer=a", exit_code=2).stderr
    assert "not among those" in cli.fails("write", "shop.orders", file, "--overwrite", "--partition", "customer=b")
