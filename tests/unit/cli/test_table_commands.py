import datetime
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from siltstone.lake import Lake
from tests.unit.cli.command_line import Cli

Orders = Callable[..., Cli]


def test_create_takes_types_from_a_schema_file(cli: Cli) -> None:
    schema = cli.file("schema.json", '{"id": "int64", "tags": {"list": "string"}, "price": "decimal(10, 2)"}')
    made = cli.json("table", "create", "shop.items", "--key", "id", "--schema", schema, "--property", "user.owner=a=b")
    assert made["action"] == "created"
    assert made["table"]["columns"] == [
        {"name": "id", "type": "int64", "nullable": True},
        {"name": "tags", "type": {"list": "string"}, "nullable": True},
        {"name": "price", "type": "decimal(10,2)", "nullable": True},
    ]
    assert Lake(cli.root).table("shop.items").properties == {"user.owner": "a=b"}


def test_create_takes_a_schema_file_with_a_list_of_fields(cli: Cli) -> None:
    schema = cli.file("schema.json", '[{"name": "id", "type": "string", "nullable": false}]')
    made = cli.json("table", "create", "shop.items", "--key", "id", "--schema", schema)
    assert made["table"]["columns"] == [{"name": "id", "type": "string", "nullable": False}]


def test_create_hands_every_option_on(cli: Cli) -> None:
    schema = cli.file("schema.json", '{"a": "int64", "b": "string", "c": "timestamp", "d": "date"}')
    options = ["--key", "a,b", "--sort-key", "c", "--partition-by", "d", "--merge-engine", "partial_update"]
    options.append("--unique-within-partition")
    cli("table", "create", "shop.t", "--schema", schema, *options, "--description", "Things", "--property", "user.x=")
    shown = cli.json("table", "show", "shop.t")
    assert shown["primary_keys"] == ["a", "b"]
    assert shown["sort_keys"] == ["c"]
    assert shown["partition_keys"] == ["d"]
    assert shown["merge_engine"] == "partial_update"
    assert shown["description"] == "Things"
    assert shown["properties"] == {"user.x": ""}
    cli("table", "create", "shop.all", "--schema", schema, "--key", "a", "--keep-duplicates")
    assert cli.json("table", "show", "shop.all")["drop_duplicates"] is False


def test_create_from_csv_judges_types_by_all_values(cli: Cli) -> None:
    rows = "".join(f"{i},1,,2024-01-0{1 + i % 9},true,0{i},2024-01-01T00:00:00Z\n" for i in range(50))
    header = "id,number,note,day,flag,zip,at\n"
    file = cli.file("data.csv", header + rows + "50,1.5,hello,2024-02-01,false,7,2024-01-01T00:00:00Z\n")
    made = cli.json("table", "create", "shop.t", "--key", "id", "--from", file)
    types = {column["name"]: column["type"] for column in made["table"]["columns"]}
    assert types == {
        "id": "int64",
        "number": "double",
        "note": "string",
        "day": "date",
        "flag": "bool",
        "zip": "string",
        "at": "timestamp_utc",
    }
    assert made["table"]["deltas"] == 0


def test_create_from_parquet_keeps_its_types(cli: Cli) -> None:
    table = pa.table({"id": pa.array([1], pa.uint32()), "name": pa.array(["x"]).dictionary_encode()})
    pq.write_table(table, cli.folder / "data.parquet")
    made = cli.json("table", "create", "shop.t", "--key", "id", "--from", str(cli.folder / "data.parquet"))
    assert [column["type"] for column in made["table"]["columns"]] == ["int64", "string"]


def test_create_from_json_lines_knows_days_times_and_objects(cli: Cli) -> None:
    lines = [
        {"id": 1, "day": "2024-01-01", "at": "2024-01-01T00:00:00Z", "zip": "007", "who": {"name": "x"}},
        {"id": 2, "day": None, "at": "2024-01-02T00:00:00+01:00", "score": 1.5, "who": {"age": 7}},
    ]
    file = cli.file("data.jsonl", "\n".join(map(json.dumps, lines)))
    made = cli.json("table", "create", "shop.t", "--key", "id", "--from", file)
    types = {column["name"]: column["type"] for column in made["table"]["columns"]}
    assert types["day"] == "date"
    assert types["at"] == "timestamp_utc"
    assert types["zip"] == "string"
    assert types["score"] == "double"
    assert [field["name"] for field in types["who"]["struct"]] == ["name", "age"]


def test_create_with_write_also_writes_the_rows(cli: Cli) -> None:
    file = cli.file("data.csv", "id;zip\n1;007\n2;008\n")
    made = cli.json("table", "create", "shop.t", "--key", "id", "--from", file, "--write", "--delimiter", ";")
    assert made["written"]["rows"] == 2
    assert made["written"]["stream_position"] == 1
    assert cli.rows("shop.t") == [{"id": 1, "zip": "007"}, {"id": 2, "zip": "008"}]


def test_a_column_without_values_becomes_text_with_a_warning(cli: Cli) -> None:
    file = cli.file("data.csv", "id,nothing\n1,\n")
    result = cli("table", "create", "shop.t", "--key", "id", "--from", file)
    assert "'nothing'" in result.stderr
    assert Lake(cli.root).table("shop.t").schema.field("nothing").type == pa.string()


def test_a_dry_run_of_create_shows_the_schema_and_changes_nothing(cli: Cli) -> None:
    file = cli.file("data.csv", "id,name\n1,x\n")
    shown = cli("table", "create", "shop.t", "--key", "id", "--from", file, "--dry-run", "--write").stdout
    assert "Dry run" in shown
    assert "int64" in shown
    assert cli.listing() == {}
    assert cli.json("table", "create", "shop.t", "--key", "id", "--from", file, "--dry-run")["dry_run"] is True
    assert cli.listing() == {}


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_create_refuses_what_cannot_be_a_table(cli: Cli, dry_run: list[str]) -> None:
    file = cli.file("data.csv", "id,name\n1,x\n")
    create = ["table", "create", "shop.t", "--from", file, *dry_run]
    assert "'nosuch'" in cli.fails(*create, "--key", "nosuch")
    assert "first_row" in cli.fails(*create, "--merge-engine", "first_row")
    assert "twice" in cli.fails(*create, "--key", "id", "--sort-key", "name,name")
    assert "'../up'" in cli.fails("table", "create", "shop.../up", "--from", file, *dry_run)
    assert "no namespace" in cli.fails("table", "create", "orders", "--from", file, *dry_run)
    cli("table", "create", "shop.t", "--from", file, "--key", "id")
    assert "shop.t exists already" in cli.fails(*create, "--key", "id")


def test_create_refuses_bad_schema_files(cli: Cli) -> None:
    create = ["table", "create", "shop.t", "--key", "id", "--schema"]
    assert "nosuch.json" in cli.fails(*create, str(cli.folder / "nosuch.json"))
    assert "bad.json" in cli.fails(*create, cli.file("bad.json", '{"id": "int64"'))
    message = cli.fails(*create, cli.file("type.json", '{"id": "varchar(7)"}'))
    assert "type.json" in message
    assert "varchar(7)" in message
    assert "list.json" in cli.fails(*create, cli.file("list.json", '["id"]'))
    assert "number.json" in cli.fails(*create, cli.file("number.json", "7"))


def test_create_asks_for_exactly_one_source_of_columns(cli: Cli) -> None:
    file = cli.file("data.csv", "id\n1\n")
    assert "--from" in cli.misused("table", "create", "shop.t", "--key", "id")
    assert "--from" in cli.misused("table", "create", "shop.t", "--from", file, "--schema", file)
    assert "--write" in cli.misused("table", "create", "shop.t", "--schema", file, "--write")
    assert "--property" in cli.misused("table", "create", "shop.t", "--from", file, "--property", "novalue")
    assert "--merge-engine" in cli.misused("table", "create", "shop.t", "--from", file, "--merge-engine", "newest")


def test_list_shows_all_tables_or_those_of_a_namespace(cli: Cli) -> None:
    schema = cli.file("schema.json", '{"id": "int64"}')
    for name in ("shop.orders", "shop.items", "hr.people"):
        cli("table", "create", name, "--key", "id", "--schema", schema)
    assert [table["name"] for table in cli.json("table", "list")] == ["hr.people", "shop.items", "shop.orders"]
    assert [table["name"] for table in cli.json("table", "list", "hr")] == ["hr.people"]
    text = cli("table", "list").stdout
    assert "hr.people" in text
    assert all(line == line.rstrip() for line in text.splitlines())
    message = cli.fails("table", "list", "shopp")
    assert "did you mean shop?" in message


def test_list_of_an_empty_or_missing_root_is_empty_and_creates_nothing(cli: Cli) -> None:
    assert "No tables" in cli("table", "list").stdout
    assert cli.json("table", "list") == []
    assert not cli.root.exists()


def test_a_damaged_table_does_not_hide_the_others(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    cli("table", "create", "shop.fine", "--key", "order_id", "--schema", str(cli.folder / "schema.json"))
    folder = cli.json("table", "show", "shop.orders")["folder"]
    for batch in (cli.folder / folder / "log").iterdir():
        batch.write_bytes(b"v1\nnonsense")
    from siltstone.log.commit import forget_logs

    forget_logs(str(cli.root))
    listed = {table["name"]: table["problem"] for table in cli.json("table", "list")}
    assert listed["shop.fine"] is None
    assert "log" in listed["shop.orders"]


def test_show_tells_columns_keys_and_what_the_deltas_hold(orders: Orders) -> None:
    cli = orders(
        "--key",
        "order_id",
        "--partition-by",
        "day",
        "--unique-within-partition",
        "--description",
        "All [red]orders[/red]",
    )
    cli("write", "shop.orders", cli.file("a.csv", "order_id,day\n1,2024-01-01\n2,2024-01-02\n"))
    shown = cli.json("table", "show", "shop.orders")
    assert shown["stream_position"] == 1
    assert shown["partitions"] == 2
    assert shown["deltas"] == 2
    assert shown["rows"] == 2
    assert shown["bytes"] > 0
    assert shown["schema_id"] == 1
    assert shown["folder"].startswith(str(cli.root))
    text = cli("table", "show", "shop.orders").stdout
    assert "All [red]orders[/red]" in text
    assert "decimal(10,2)" in text
    assert "partition key" in text


def test_show_guesses_what_a_wrong_name_means(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    assert "did you mean shop.orders?" in cli.fails("table", "show", "shop.ordres")
    assert "did you mean shop.orders?" in cli.fails("table", "show", "orders")
    assert "did you mean shop.orders?" in cli.fails("table", "show", "store.orders")
    assert "did you mean" not in cli.fails("table", "show", "hr.people")
    missing = str(cli.folder / "missing")
    assert f"{missing} does not exist" in cli.fails("table", "show", "shop.orders", "--root", missing)


def test_drop_needs_a_yes_where_nobody_can_be_asked(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    assert "--yes" in cli.misused("table", "drop", "shop.orders")
    before = cli.listing()
    assert "dropped shop.orders" in cli("table", "drop", "shop.orders", "--dry-run").stdout
    assert cli.listing() == before
    assert cli.json("table", "drop", "shop.orders", "--yes")["action"] == "dropped"
    assert cli.json("table", "list") == []
    assert "shop.orders" in cli.fails("table", "drop", "shop.orders", "--yes")


def test_rename_moves_between_namespaces_that_exist(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    before = cli.listing()
    cli("table", "rename", "shop.orders", "shop.old", "--dry-run")
    assert cli.listing() == before
    assert "namespace archive" in cli.fails("table", "rename", "shop.orders", "archive.orders")
    cli("table", "create", "archive.x", "--schema", str(cli.folder / "schema.json"))
    assert "exists already" in cli.fails("table", "rename", "shop.orders", "archive.x")
    cli("table", "rename", "shop.orders", "archive.orders")
    assert [table["name"] for table in cli.json("table", "list")] == ["archive.orders", "archive.x"]
    assert "shop.orders" in cli.fails("table", "rename", "shop.orders", "shop.new")


def test_alter_adds_and_widens_columns_and_sets_properties(orders: Orders) -> None:
    cli = orders("--property", "user.a=1", "--property", "user.b=2", id="int32")
    before = cli.listing()
    change = ["--add-column", "note:string", "--add-column", "id:int64", "--set", "user.a=9", "--unset", "user.b"]
    planned = cli.json("table", "alter", "shop.orders", *change, "--dry-run")
    assert cli.listing() == before
    done = cli.json("table", "alter", "shop.orders", *change, "--add-column", 'tags:{"list": "string"}')
    assert planned["changes"] == [
        "widened column id from int32 to int64",
        "added column note string",
        "set property user.a=9",
        "removed property user.b",
    ]
    assert set(planned["changes"]) < set(done["changes"])
    table = Lake(cli.root).table("shop.orders")
    assert table.properties == {"user.a": "9"}
    assert table.schema.names == ["id", "note", "tags"]
    assert table.schema.field("id").type == pa.int64()


def test_alter_says_so_where_there_is_nothing_to_change(orders: Orders) -> None:
    cli = orders("--property", "user.a=1")
    before = cli.listing()
    assert "nothing to change" in cli("table", "alter", "shop.orders", "--set", "user.a=1").stdout
    assert cli.listing() == before


def test_alter_refuses_what_does_not_fit(orders: Orders) -> None:
    cli = orders()
    alter = ["table", "alter", "shop.orders"]
    assert "'customer'" in cli.fails(*alter, "--add-column", "customer:int64")
    assert "'note'" in cli.fails(*alter, "--add-column", "note:nonsense")
    assert "'note'" in cli.fails(*alter, "--add-column", "note")
    assert "'tags'" in cli.fails(*alter, "--add-column", "tags:{list")
    assert "nosuch" in cli.fails(*alter, "--unset", "nosuch")
    for dry_run in ([], ["--dry-run"]):
        assert "did you mean delta_retention_seconds?" in cli.fails(*alter, "--set", "delta_retention=5", *dry_run)
        assert "'soon'; give seconds" in cli.fails(*alter, "--set", "delta_retention_seconds=soon", *dry_run)
        assert "kept by the system" in cli.fails(*alter, "--set", "siltstone.closed_before_ms=0", *dry_run)
    assert cli.json("table", "show", "shop.orders")["properties"] == {}
    assert "--set" in cli.misused(*alter)
    assert "'a'" in cli.misused(*alter, "--set", "a=1", "--unset", "a")


def test_alter_renames_and_drops_columns_after_showing_what_it_would_do(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    cli("write", "shop.orders", cli.file("rows.csv", "order_id,customer,amount,day\n1,ann,5.0,2024-05-01\n"))
    before = cli.json("table", "show", "shop.orders")["columns"]
    change = ["--rename-column", "customer=buyer", "--drop-column", "amount"]
    planned = cli.json("table", "alter", "shop.orders", *change, "--dry-run")
    assert planned["changes"] == ["dropped column amount", "renamed column customer to buyer"]
    assert cli.json("table", "show", "shop.orders")["columns"] == before
    assert cli.json("table", "alter", "shop.orders", *change)["changes"] == planned["changes"]
    assert cli.rows("shop.orders") == [{"order_id": 1, "buyer": "ann", "day": datetime.date(2024, 5, 1)}]
    (delta,) = cli.json("deltas", "shop.orders")
    assert delta["columns"] == ["order_id", "buyer", "amount", "day"]


def test_alter_names_the_column_that_cannot_be_renamed_or_dropped(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    alter = ["table", "alter", "shop.orders"]
    assert "'custommer' is not a column" in cli.fails(*alter, "--rename-column", "custommer=buyer")
    assert "primary keys" in cli.fails(*alter, "--drop-column", "order_id")
    assert "name=value" in cli.misused(*alter, "--rename-column", "customer")


def test_a_strict_write_refuses_a_misspelt_column(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    rows = cli.file("rows.csv", "order_id,custmer\n1,ann\n")
    refusal = cli.fails("write", "shop.orders", rows, "--strict")
    assert "'custmer' is not in the table" in refusal
    assert "did you mean customer?" in refusal
    assert "'custmer'" in cli.fails("write", "shop.orders", rows, "--strict", "--dry-run")


def test_a_write_to_a_renamed_column_does_not_call_it_new(orders: Orders) -> None:
    cli = orders("--key", "order_id")
    cli("table", "alter", "shop.orders", "--rename-column", "customer=buyer")
    rows = cli.file("rows.csv", "order_id,buyer,gift\n1,ann,true\n")
    assert cli.json("write", "shop.orders", rows, "--dry-run")["new_columns"] == ["gift"]
    assert cli.json("write", "shop.orders", rows)["new_columns"] == ["gift"]
