"""SQL over tables of a lake: what is read and what is not, names, moments, errors in words, and that nothing is written."""

import datetime
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import siltstone
from siltstone.table.dataset import PushedDataset


@pytest.fixture
def lake(tmp_path: Path) -> siltstone.Lake:
    lake = siltstone.open(tmp_path / "lake")
    orders = lake.create_table(
        "shop.orders",
        schema={"id": "int64", "status": "string", "amount": "double", "price": "decimal(10,2)"},
        primary_keys=["id"],
        properties={"row_group_rows": "10"},
    )
    orders.write(
        [
            {"id": number, "status": "paid" if number % 2 else "new", "amount": float(number), "price": number}
            for number in range(100)
        ]
    )
    orders.compact(engine="local")
    orders.write([{"id": 1, "status": "sent"}])
    customers = lake.create_table("shop.customers", schema={"id": "int64", "name": "string"}, primary_keys=["id"])
    customers.write([{"id": 1, "name": "Ada"}])
    customers.compact(engine="local")
    return lake


def rows(query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = query.to_arrow().to_pylist()
    return found


def test_one_query_reads_several_tables(lake: siltstone.Lake) -> None:
    query = lake.sql("select name, status from shop.orders join shop.customers using (id)")
    assert rows(query) == rows(query) == [{"name": "Ada", "status": "paid"}]
    assert [table.name for table in query.tables] == ["shop.orders", "shop.customers"]
    assert query.schema.names == ["name", "status"]
    assert query.to_pandas().to_dict("records") == query.to_polars().to_dicts() == pa.table(query).to_pylist()
    assert rows(lake.sql("select status from shop.orders where id = 1", fresh=True)) == [{"status": "sent"}]


def test_columns_and_filters_go_down_to_the_scan(lake: siltstone.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, str]] = []
    read = PushedDataset.read

    def watched(self: PushedDataset, columns: Any, filter: Any) -> pa.RecordBatchReader:
        asked.append((columns, str(filter)))
        return read(self, columns, filter)

    monkeypatch.setattr(PushedDataset, "read", watched)
    assert rows(lake.sql("select sum(amount) s from shop.orders where id = 7 and status = 'paid'")) == [{"s": 7.0}]
    ((columns, where),) = asked
    assert columns == ["amount"]
    assert "(id == 7)" in where
    assert '(status == "paid")' in where


@pytest.mark.parametrize("where", ["id = 7", "id in (7, 8)", "price < 5", "id between 3 and 5 or id = 90"])
def test_what_duckdb_asks_for_rules_out_row_groups(
    lake: siltstone.Lake, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    scans: list[siltstone.Scan] = []
    narrowed = siltstone.Scan.narrowed

    def watched(self: siltstone.Scan, *how: Any) -> siltstone.Scan:
        scans.append(narrowed(self, *how))
        return scans[-1]

    monkeypatch.setattr(siltstone.Scan, "narrowed", watched)
    relation = lake.table("shop.orders").scan().to_duckdb().filter(where)
    assert len(relation.fetchall()) == len(rows(lake.sql(f"select id from shop.orders where {where}")))
    assert {scan.where is None for scan in scans} == {False}
    assert any(scan.explain().row_groups < 10 for scan in scans)


def test_the_rows_of_a_scan_are_filtered_by_both(lake: siltstone.Lake) -> None:
    relation = lake.table("shop.orders").scan(["id", "amount"], "status = 'paid'").to_duckdb()
    assert relation.filter("amount > 95").project("id").order("id").fetchall() == [(97,), (99,)]


def test_an_arrow_data_set_reads_what_it_is_asked_for(lake: siltstone.Lake) -> None:
    dataset = lake.table("shop.orders").scan().to_dataset()
    wanted = pc.field("id") < 3
    assert dataset.to_table(columns=["id"], filter=wanted).num_rows == dataset.count_rows(filter=wanted) == 3
    assert sum(batch.num_rows for batch in dataset.to_batches()) == dataset.count_rows() == 100
    for refused in ("get_fragments", "head", "take", "filter"):
        with pytest.raises(siltstone.InvalidInputError, match="are read by scanner"):
            getattr(dataset, refused)()
    with pytest.raises(siltstone.InvalidInputError, match="are read by scanner"):
        _ = dataset.partition_expression


def test_a_query_is_of_one_moment_whatever_is_written_meanwhile(lake: siltstone.Lake) -> None:
    query = lake.sql("select count(*) n from shop.orders a join shop.orders b using (id)", fresh=True)
    lake.table("shop.orders").write([{"id": 1000}])
    assert rows(query) == [{"n": 100}]


def test_as_of_is_said_for_a_table_or_within_the_query(lake: siltstone.Lake) -> None:
    select = "select status from shop.orders {} where id = 1"
    before, now = [{"status": "paid"}], [{"status": "sent"}]
    at = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    moments: list[tuple[Any, Any]] = [(1, before), ({"shop.orders": 2}, now), ({"shop.orders": 1}, before), (at, now)]
    for as_of, expected in moments:
        assert rows(lake.sql(select.format(""), as_of=as_of)) == expected
    for clause, expected in (
        ("AT (VERSION => 1)", before),
        ("o AT (VERSION => 1 + 1)", now),
        ("AT (TIMESTAMP => now() + interval 1 day)", now),
        ("AT (TIMESTAMP => '1999-01-01')", []),
    ):
        assert rows(lake.sql(select.format(clause), as_of={"shop.orders": 1})) == expected
    both = "select a.status, b.status from shop.orders a AT (VERSION => 1), shop.orders b where a.id = 1 and b.id = 1"
    assert rows(lake.sql(both, fresh=True)) == [{"status": "paid", "status_1": "sent"}]


@pytest.mark.parametrize(
    ("query", "as_of", "message"),
    [
        ("from shop.orders, shop.customers", 1, "a position is that of one table"),
        ("from shop.orders", {"shop.order": 1}, "does not read shop.order; did you mean shop.orders"),
        (
            "from shop.orders AT (VERSION => 1.5)",
            None,
            r"write AT \(VERSION => 120\) or AT \(VERSION => 'release-7'\) or AT \(TIMESTAMP",
        ),
        ("from shop.orders AT (VERSION => '../x')", None, "tag '../x' is not allowed"),
        ("from shop.orders AT (TIMESTAMP => 3)", None, r"write AT \(VERSION => 120\)"),
    ],
)
def test_a_moment_that_cannot_be_meant_is_refused(lake: siltstone.Lake, query: str, as_of: Any, message: str) -> None:
    with pytest.raises(siltstone.InvalidInputError, match=message):
        lake.sql(query, as_of=as_of)


def test_tables_are_found_by_any_name_that_they_can_have(lake: siltstone.Lake) -> None:
    for number, name in enumerate(["shop.a.b", "main.X", "shop.Orders", "temp.t-1", "information_schema.tables"]):
        lake.create_table(name, schema={"a b": "int64", 'c"d': "int64"}).write([{"a b": number, 'c"d': 1}])
    for query, number in (
        ("from shop.a.b", 0),
        ('from shop."a.b"', 0),
        ('from "shop.a.b"', 0),
        ("from MAIN.x", 1),
        ('from shop."Orders"', 2),
        ('from temp."t-1"', 3),
        ("from information_schema.tables", 4),
    ):
        assert rows(lake.sql(query, fresh=True)) == [{"a b": number, 'c"d': 1}], query
    assert rows(lake.sql('select x."c""d" as n from shop."Orders" x, shop.orders y where y.id = 1', fresh=True)) == [
        {"n": 1}
    ]
    assert rows(lake.sql("select SHOP.customers.name from SHOP.Customers")) == [{"name": "Ada"}]
    assert rows(lake.sql('with "shop.orders" as (select 1 a), t as (select 2 b) from "shop.orders", t')) == [
        {"a": 1, "b": 2}
    ]


def test_documents_are_rows_of_their_content(lake: siltstone.Lake) -> None:
    reviews = lake.create_document_table("shop.reviews")
    reviews.update("r1", {"stars": 5})
    reviews.update("r2", {"stars": 3})
    query = lake.sql("select key, (content->>'stars')::int stars from shop.reviews where key = 'r1'")
    assert rows(query) == [{"key": "r1", "stars": 5}]
    with pytest.raises(siltstone.InvalidInputError, match="reads as they are now only"):
        lake.sql("from shop.reviews AT (VERSION => 1)")


@pytest.mark.parametrize(
    "query",
    [
        "copy shop.orders to '{file}'",
        "with x as (copy (select 1) to '{file}') from x",
        "with x as (copy (select 1) to (select current_setting('temp_directory') || '/x')) from x",
        "with x as (insert into shop.orders values (1) returning *) from x",
        "attach '{file}'",
        "attach ':memory:' as other",
        "export database '{file}'",
        "install httpfs",
        "load '{file}'",
        "pragma version",
        "call pragma_version()",
        "set threads = 1",
        "reset lock_configuration",
        "create table t as select 1",
        "drop view shop.orders",
        "checkpoint",
        "explain analyze select 1",
        "select 1; copy (select 1) to '{file}'",
        "",
    ],
)
def test_only_a_select_is_run(lake: siltstone.Lake, tmp_path: Path, query: str) -> None:
    with pytest.raises(siltstone.InvalidInputError, match=r"only a SELECT|give one SELECT|^SQL: Parser Error"):
        lake.sql(query.format(file=tmp_path / "out"))
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


@pytest.mark.parametrize(
    "table",
    [
        "read_csv('{file}')",
        "read_text('{file}')",
        "read_blob('{file}')",
        "read_parquet('https://localhost/x')",
        "read_json('{file}')",
        "glob('/*')",
        "sniff_csv('{file}')",
        "'{file}'",
        "query_table('{file}')",
        "query('copy (select 1) to ''{file}.out''')",
        "enable_logging()",
        "secret",
        "arrow_scan(1, 2, 3)",
    ],
)
def test_a_select_finds_no_files_settings_and_variables(lake: siltstone.Lake, tmp_path: Path, table: str) -> None:
    (tmp_path / "file.csv").write_text("a\n1\n")
    secret = pa.table({"a": [1]})
    with pytest.raises((siltstone.InvalidInputError, siltstone.NotFoundError)):
        lake.sql(f"from {table.format(file=tmp_path / 'file.csv')}").to_arrow()
    assert secret.num_rows == 1
    assert {path.name for path in tmp_path.iterdir()} == {"lake", "file.csv"}


@pytest.mark.parametrize(
    ("query", "error", "message"),
    [
        ("select\nid frm shop.orders", siltstone.InvalidInputError, r"syntax error at or near .*, in line 2 at '"),
        ("select amuont from shop.orders", siltstone.InvalidInputError, '"amuont" not found.*amount'),
        ("from shop.ordrs", siltstone.NotFoundError, "no table shop.ordrs.*did you mean shop.orders"),
        ("from orders", siltstone.NotFoundError, "no table orders; name its namespace, too; did you mean shop.orders"),
        ("select status::int from shop.orders", siltstone.InvalidInputError, "Could not convert string 'new'"),
    ],
)
def test_what_is_wrong_is_said_in_words(lake: siltstone.Lake, query: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        lake.sql(query).to_arrow()


def test_a_file_that_is_missing_is_named_as_by_any_read(lake: siltstone.Lake, tmp_path: Path) -> None:
    query = lake.sql("select * from shop.orders")
    for path in (tmp_path / "lake").rglob("compacted/**/*.parquet"):
        path.unlink()
    with pytest.raises(siltstone.CorruptionError, match=r"\.parquet"):
        query.to_arrow()


def test_rows_come_as_they_are_found(lake: siltstone.Lake) -> None:
    reader = lake.sql("from range(1000000000) r(a), shop.customers").to_batches()
    assert reader.read_next_batch().num_rows > 0


def test_duckdb_that_is_missing_or_old_is_one_sentence(lake: siltstone.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duckdb.__version__", "1.5.5")
    with pytest.raises(siltstone.NotInstalledError, match=r"DuckDB 2 or newer, and 1\.5\.5 is installed"):
        lake.sql("select 1")
    assert len(lake.table("shop.orders").scan(["id"]).to_duckdb().fetchall()) == 100
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(siltstone.NotInstalledError, match=r"SQL needs duckdb: run pip install 'siltstone\[sql\]'"):
        lake.sql("select 1")


def test_notebooks_show_small_tables_in_which_everything_is_escaped(lake: siltstone.Lake) -> None:
    assert "<td>&lt;b&gt;</td>" in lake.sql("select '<b>' x, null y")._repr_html_()
    assert "<i>null</i>" in lake.sql("select '<b>' x, null y")._repr_html_()
    shown = lake.sql("from range(1000000000)")._repr_html_()
    assert shown.count("<tr>") == 21
    assert "there are more" in shown
    orders = lake.table("shop.orders")
    assert "<td>decimal(10,2)</td>" in orders._repr_html_()
    assert orders.scan(["id"])._repr_html_().count("<tr>") == 21
    assert "<td>shop.orders</td>" in lake._repr_html_()


def test_the_page_about_engines_shows_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
    block = page.split("```python\n")[1].split("```")[0]
    lake = siltstone.open(tmp_path / "my-lake")
    schema = {"order_id": "int64", "status": "string", "amount": "double"}
    orders = lake.create_table("shop.orders", schema=schema, primary_keys=["order_id"])
    orders.write([{"order_id": 1, "status": "paid", "amount": 9.5}])
    monkeypatch.chdir(tmp_path)
    exec(block, {})
