"""The pages of one table: its state, rows, keys, documents and schema, and who may see rows."""

import re
import threading
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

import siltstone
from siltstone.cli.process import ServeOptions
from siltstone.errors import CorruptionError
from siltstone.log.commit import forget_logs
from siltstone.rows.files import DataFile
from siltstone.service.node import SparkStarter
from siltstone.storage import object_store as storage
from siltstone.table import report
from siltstone.web.row_reader import BusyError, RowReader
from tests.unit.cli.command_line import Cli
from tests.unit.rounds.compaction import make_table, only_partition, rows
from tests.unit.web.serving import READ_TOKEN, TOKEN, Service

ROW_PAGES = ("/tables/shop.orders/rows", "/tables/shop.orders/keys?key.id=7")
ROW_CALLS = ("/api/tables/shop.orders/rows", "/api/tables/shop.orders/keys?key.id=7")


def reviews(service: Service) -> None:
    """Create documents, of which one is changed, and compact them."""
    docs = siltstone.open(service.root).create_document_table("shop.reviews")
    docs.update("<r7>", {"stars": 3, "old": True})
    docs.update("<r7>", '{..,"stars":5,"old":~,"text":"<b>"}', tags=["<edited>"])
    docs.compact(engine="local")


def test_the_first_rows_are_shown_and_how_many_there_are(service: Service) -> None:
    service.write(0, 50)
    service.run_cycle()
    service.write(100)
    browser = service.browser()
    page = browser.page("/tables/shop.orders/rows")
    assert "the first 20 of 50 compacted rows" in page
    assert "1 delta not compacted yet" in page
    assert page.count("<tr>") == 21
    answer = browser.get("/api/tables/shop.orders/rows?limit=3").json()
    assert (len(answer["rows"]), answer["total_rows"], answer["waiting_deltas"]) == (3, 50, 1)
    assert answer["rows"][0].keys() == {"id", "v"}
    assert browser.get("/api/tables/shop.orders/rows?limit=101").status_code == 422
    assert browser.get("/api/tables/shop.orders/rows?limits=1").status_code == 422


def test_a_preview_reads_one_row_group_and_no_delta(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(service.root, "shop.wide", properties={"row_group_rows": "10000"})
    table.write(rows(range(40_000), "v"))
    table.compact(engine="local")
    table.write(rows([7], "w"))
    for path in Path(service.root, "tables/shop/wide").rglob("deltas/_/*.parquet"):
        path.write_bytes(b"")
    read: list[int] = []
    read_groups = DataFile.read_groups

    def counted(self: DataFile, groups: list[int], *rest: object) -> object:
        read.append(len(groups))
        return read_groups(self, groups, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DataFile, "read_groups", counted)
    preview = RowReader(siltstone.open(service.root)).preview("shop.wide", 5)
    assert [row["v"] for row in preview.rows] == [f"v{row['id']}" for row in preview.rows]
    assert (len(preview.rows), preview.total_rows, preview.waiting_deltas) == (5, 40_000, 1)
    assert read == [1]


def test_a_table_without_rows_says_so(service: Service) -> None:
    assert "No row is compacted yet." in service.browser().page("/tables/shop.orders/rows")


def test_values_of_all_kinds_are_text_on_the_page_and_escaped(service: Service) -> None:
    table = siltstone.open(service.root).create_table(
        "shop.kinds",
        schema={
            "id": "int64",
            "b": "binary",
            "t": "timestamp_utc",
            "d": "double",
            "l": {"list": "string"},
            "s": "string",
        },
        primary_keys=["id"],
    )
    long = "x" * 1000
    table.write(
        pa.table(
            {
                "id": pa.array([1, 2], pa.int64()),
                "b": pa.array([b"\xff", None], pa.binary()),
                "t": pa.array([0, None], pa.timestamp("us", "UTC")),
                "d": pa.array([float("nan"), 1.5]),
                "l": pa.array([["<i>"], None], pa.list_(pa.string())),
                "s": pa.array(["<script>alert(1)</script>", long]),
            }
        )
    )
    table.compact(engine="local")
    browser = service.browser()
    page = browser.page("/tables/shop.kinds/rows")
    for shown in ("/w==", "1970-01-01T00:00:00Z", "NaN", "&lt;script&gt;", "null", "[&#34;&lt;i&gt;&#34;]"):
        assert shown in page
    assert "<script>alert" not in page
    assert long not in page, "very long values are cut on pages"
    assert browser.get("/api/tables/shop.kinds/rows").json()["rows"][1]["s"] == long
    assert "list&lt;string&gt;" in browser.page("/tables/shop.kinds/schema")
    (explained,) = browser.get("/api/tables/shop.kinds/keys?key.id=1").json()
    assert explained["row"]["b"] == "/w=="
    assert "NaN" in browser.page("/tables/shop.kinds/keys?key.id=1")


def test_a_key_is_explained_at_an_address_of_its_own(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    table = service.tables[0]
    table.write(rows([7], "later "))
    table.write(pa.table({"id": pa.array([8], pa.int64())}), type="delete")
    browser = service.browser()
    form = browser.page("/tables/shop.orders/keys")
    assert 'name="key.id"' in form
    assert "int64" in form
    page = browser.page("/tables/shop.orders/keys?key.id=7")
    assert 'value="7"' in page
    assert "The row of position 2 counts: it came last." in page
    assert "1 change not compacted since the last round, which went up to position 1." in page
    assert "later 7" in page
    assert page.count("counts</span>") == 1
    (explained,) = browser.get("/api/tables/shop.orders/keys?key.id=7").json()
    assert explained["row"] == {"id": 7, "v": "later 7"}
    assert [event["is_winner"] for event in explained["events"]] == [False, True]
    assert explained == orjson.loads(orjson.dumps(table.explain_key({"id": 7})[0]))
    gone = browser.page("/tables/shop.orders/keys?key.id=8")
    assert "There is no row: position 3 deleted it" in gone
    assert "No such key" in browser.page("/tables/shop.orders/keys?key.id=99999")
    assert browser.get("/api/tables/shop.orders/keys?key.id=99999").json() == []


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("key.id=abc", "id cannot be &#39;abc&#39;: its type is int64."),
        ("key.id=", "id needs a value."),
        ("key.v=1", "v is not in the primary key; that is id."),
        ("key.%3Cb%3E=1", "&lt;b&gt; is not in the primary key"),
        ("key.id=9999999999999999999999", "its type is int64."),
    ],
)
def test_a_wrong_key_is_answered_in_words(service: Service, query: str, said: str) -> None:
    browser = service.browser()
    page = browser.page(f"/tables/shop.orders/keys?{query}", 400)
    assert said in page
    assert 'name="key.id"' in page, "it can be corrected there"
    answer = browser.get(f"/api/tables/shop.orders/keys?{query}")
    assert answer.status_code == 422
    assert "id" in answer.json()["error"]["message"]


def test_a_key_of_several_columns_may_have_nulls(service: Service) -> None:
    table = make_table(service.root, "shop.days", primary_keys=["id", "v"])
    table.write(pa.table({"id": pa.array([1, None], pa.int64()), "v": ["a", None]}))
    browser = service.browser()
    assert "id needs a value." in browser.page("/tables/shop.days/keys?key.v=a", 400)
    assert "The row of position 1 counts" in browser.page("/tables/shop.days/keys?key.id=1&key.v=a")
    page = browser.page("/tables/shop.days/keys?key.id=&key.v=&null=id&null=v")
    assert "id = null, v = null" in page
    assert page.count("checked") == 2
    assert "No such key" in browser.page("/tables/shop.days/keys?key.id=&null=id&key.v=")


def test_a_table_in_which_no_row_wins_says_so(service: Service) -> None:
    make_table(service.root, "shop.log", primary_keys=[])
    browser = service.browser()
    assert "has no primary key" in browser.page("/tables/shop.log/keys?key.id=1")
    assert browser.get("/api/tables/shop.log/keys?key.id=1").status_code == 400


def test_a_document_has_a_timeline(service: Service) -> None:
    reviews(service)
    browser = service.browser()
    listed = browser.page("/tables/shop.reviews/rows")
    assert "/tables/shop.reviews/documents?key=%3Cr7%3E" in listed
    assert "Key of the document" in browser.page("/tables/shop.reviews/documents")
    page = browser.page("/tables/shop.reviews/documents?key=%3Cr7%3E")
    for shown in ("&lt;r7&gt;", "version 2", "&lt;edited&gt;", "<del", "<ins", "The document after it"):
        assert shown in page
    assert "<edited>" not in page
    events = browser.get("/api/tables/shop.reviews/documents?key=%3Cr7%3E").json()
    assert [event["version"] for event in events if event["kind"] == "delta"] == [1, 2]
    assert {each["kind"] for event in events for each in event["differences"] or ()} == {"added", "removed", "changed"}
    assert "Nothing was written to this document." in browser.page("/tables/shop.reviews/documents?key=none")
    assert browser.page("/tables/shop.orders/documents?key=1", 404)
    assert browser.get("/api/tables/shop.orders/documents?key=1").status_code == 404
    assert browser.get("/api/tables/shop.reviews/documents?key=").status_code == 422


def test_rows_need_the_token_where_there_is_one(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    browser = service.browser(token=TOKEN, read_token=READ_TOKEN)
    assert browser.page("/tables/shop.orders")
    for path in ROW_PAGES:
        page = browser.page(path, 401)
        assert "Rows are only for those who have the token." in page
        assert 'href="/login"' in page
    for path in ROW_CALLS:
        assert browser.get(path).status_code == 401
        assert browser.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401
        for token in (TOKEN, READ_TOKEN):
            assert browser.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert browser.press("/login", "/login", token=READ_TOKEN) == 303
    for path in ROW_PAGES:
        assert "Log out" in browser.page(path)


def test_a_private_service_shows_nothing_of_a_table_without_a_token(service: Service) -> None:
    browser = service.browser(token=TOKEN, read_token=READ_TOKEN, is_private=True)
    for path in (*ROW_PAGES, "/tables/shop.orders/schema", *ROW_CALLS, "/api/tables/shop.orders/schema", "/api/node"):
        assert browser.get(path).status_code == 401, path
        assert browser.get(path, headers={"Authorization": f"Bearer {READ_TOKEN}"}).status_code == 200, path


def test_rows_are_shown_to_nobody_where_that_is_switched_off(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    browser = service.browser(has_preview=False)
    for path in ROW_PAGES:
        assert "--no-preview" in browser.page(path, 403)
    for path in ROW_CALLS:
        assert browser.get(path).status_code == 403
    page = browser.page("/tables/shop.orders")
    assert "/tables/shop.orders/rows" not in page
    assert "/tables/shop.orders/schema" in page
    assert browser.get("/api/node").json() == {"node": "node", "shows_rows": False, "is_spark_starting": False}


def test_the_schema_is_shown_with_rules_properties_and_lines_to_copy(service: Service) -> None:
    make_table(
        service.root,
        "shop.days",
        partition_keys=["v"],
        primary_keys=["v", "id"],
        properties={"user.password": "hunter2"},
    )
    browser = service.browser()
    page = browser.page("/tables/shop.days/schema")
    for shown in ("primary key, partition key", "int64", "Merge engine", "deduplicate", "user.password", "Polars"):
        assert shown in page
    assert "hunter2" not in page
    assert "hunter2" not in browser.get("/api/tables/shop.days/schema").text
    assert [column["name"] for column in browser.get("/api/tables/shop.days/schema").json()["columns"]] == ["id", "v"]


def test_the_lines_to_copy_read_the_table(service: Service) -> None:
    service.write(0, 30)
    service.tables[0].alter(properties={"publish": "delta"})
    service.run_cycle()
    reviews(service)
    browser = service.browser()
    for name, count in (("shop.orders", 30), ("shop.reviews", 1)):
        lines = {each["system"]: each["lines"] for each in browser.get(f"/api/tables/{name}/readers").json()}
        assert list(lines)[:4] == ["Spark", "DuckDB", "Polars", "Command line"]
        for system in ("DuckDB", "Polars"):
            setup, _, last = lines[system].rpartition("\n")
            names: dict[str, object] = {}
            exec(setup, names)
            found = eval(last, names)
            assert len(found) == count, system
    published = [each for each in browser.get("/api/tables/shop.orders/readers").json() if "Delta" in each["system"]]
    assert [each["system"] for each in published] == [
        "DuckDB, published as Delta Lake",
        "Polars, published as Delta Lake",
    ]


def test_the_state_shows_deltas_that_wait_lag_bytes_and_a_map_of_buckets(service: Service) -> None:
    for number in range(3):
        service.write(number * 10)
        service.run_cycle()
    service.tables[0].write(pa.table({"id": pa.array([1], pa.int64())}), type="delete")
    page = service.browser().page("/tables/shop.orders")
    assert "Deltas waiting" in page
    assert "delete" in page
    for what in ("Bytes read by", "Bytes written by", "Bytes carried on by"):
        assert f"{what} each of the last 3 rounds" in page
    assert "Age of the oldest delta in each of the last 3 rounds; the oldest that waits now is" in page
    assert re.search(r'aria-label="1 bucket of depth 0; the largest, all, has [^"]+ are dead\."', page)
    assert "Bucket all:" in page
    details = service.browser().get("/api/tables/shop.orders").json()
    assert [delta["type"] for delta in details["waiting"]] == ["delete"]
    assert all(round_["lag_ms"] >= 0 for round_ in details["rounds"])
    assert details["buckets"][0]["depth"] == 0


def test_the_lag_of_a_round_whose_deltas_are_trimmed_is_not_known(service: Service) -> None:
    for number in range(2):
        service.write(number * 10)
        service.run_cycle()
    table = service.tables[0]
    assert None not in [each.lag_ms for each in table.details().rounds]
    storage.trim_partitions({only_partition(table): 1}, root=service.root)
    lags = [each.lag_ms for each in table.details().rounds]
    assert lags[0] is None
    assert lags[1] is not None
    assert "Age of the oldest delta in each of the last 1 rounds; nothing waits." in service.browser().page(
        "/tables/shop.orders"
    )


def test_only_the_oldest_deltas_that_wait_are_listed(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_WAITING", 2)
    for number in range(3):
        service.write(number)
    details = service.tables[0].details()
    assert [delta.stream_position for delta in details.waiting] == [1, 2]
    assert "the oldest 2 of 3" in service.browser().page("/tables/shop.orders")


def test_damage_is_told_in_words(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    for file in Path(service.root).glob("tables/shop/items/*/compacted/_/**/*.parquet"):
        file.write_bytes(b"damaged")
    forget_logs(service.root)
    browser = service.browser(raise_server_exceptions=False)
    for path in ("/tables/shop.items/rows", "/tables/shop.items/keys?key.id=1"):
        page = browser.page(path, 500)
        assert "Something went wrong" in page
        assert "A file or a log of the table is damaged" in page
        assert service.root not in page.replace(f"<p>{service.root} · ", "")
    with pytest.raises(CorruptionError):
        RowReader(siltstone.open(service.root)).preview("shop.items")


def test_a_few_read_rows_at_the_same_time_and_others_are_told_to_wait(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.write(0)
    reader = RowReader(siltstone.open(service.root), wait_seconds=0)
    inside, going_on = threading.Semaphore(0), threading.Event()
    explain_key = siltstone.Table.explain_key

    def slow(self: siltstone.Table, key: dict[str, object]) -> object:
        inside.release()
        assert going_on.wait(60)
        return explain_key(self, key)

    monkeypatch.setattr(siltstone.Table, "explain_key", slow)
    threads = [threading.Thread(target=reader.explain, args=("shop.orders", {"id": "7"})) for _ in range(2)]
    for thread in threads:
        thread.start()
        assert inside.acquire(timeout=60)
    with pytest.raises(BusyError):
        reader.preview("shop.orders")
    going_on.set()
    for thread in threads:
        thread.join(60)
    assert reader.preview("shop.orders").waiting_deltas == 1


def test_what_is_not_there_is_said_in_words(service: Service) -> None:
    browser = service.browser()
    for path, said in (
        ("/tables/shop.none", "There is no such table."),
        ("/tables/shop.none/rows", "There is no such table."),
        ("/tables/shop.none/keys", "There is no such table."),
        ("/tables/shop.none/schema", "There is no such table."),
        ("/tables/shop.orders/nothing", "There is no such table."),
        ("/cycles/7", "There is no such cycle. The newest hundred are kept."),
        ("/cycles/seven", "There is no such cycle."),
        ("/nothing", "No page has this address."),
    ):
        page = browser.page(path, 404)
        assert "There is nothing here" in page
        assert said in page


def test_a_page_says_that_spark_is_starting(service: Service) -> None:
    assert "Spark is starting" not in service.browser().page("/")
    service.is_spark_starting = True
    assert "Spark is starting on node; that takes a few seconds." in service.browser().page("/")
    assert service.browser().get("/api/node").json()["is_spark_starting"] is True


def test_an_option_of_the_command_switches_rows_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[ServeOptions] = []
    monkeypatch.setattr("siltstone.service.set_up_logs", lambda *_, **__: None)

    def serve(options: ServeOptions, _: object) -> bool:
        served.append(options)
        return True

    monkeypatch.setattr("siltstone.cli.process.run_service", serve)
    Cli(tmp_path)("serve")
    Cli(tmp_path)("serve", "--no-preview")
    assert [options.has_preview for options in served] == [True, False]


def test_spark_is_starting_while_its_session_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    starter, said = SparkStarter({}), list[bool]()

    def start(conf: object) -> object:
        said.append(starter.is_starting)
        return object()

    monkeypatch.setattr("siltstone.spark.session.local_session", start)
    said.append(starter.is_starting)
    assert starter() is starter()
    assert [*said, starter.is_starting] == [False, True, False]
