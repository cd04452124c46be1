"""The pages on a real lake and its cycles."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

import siltstone
from siltstone.errors import StorageError
from siltstone.log.commit import forget_logs
from siltstone.service import controls, service_status
from siltstone.web.pages import make_templates
from tests.unit.rounds.compaction import make_table
from tests.unit.web.serving import Service

SECRET = "postgresql://silt:hunter2@db/silt"


def test_a_service_that_has_done_nothing_yet_has_pages(service: Service) -> None:
    browser = service.browser()
    page = browser.page("/")
    assert "No service is leading" in page
    assert "No cycle has finished yet." in page
    assert "never" in browser.page("/tables")
    assert "No round has compacted this table yet: it is compacted in the next cycle." in browser.page(
        "/tables/shop.orders"
    )


def test_the_current_cycle_is_shown_with_its_partitions_and_workers(service: Service) -> None:
    service.write(0)
    service.begin()
    page = service.browser().page("/")
    assert "Cycle 1 is running" in page
    assert "0 of 2 partitions done." in page
    assert page.count('pill is-idle">waiting') == 2
    assert service.worker.step()
    page = service.browser().page("/")
    assert "1 of 2 partitions done." in page
    assert 'aria-label="1 completed, 0 failed, 0 running, 1 waiting"' in page
    assert "shop/orders/1/deltas/_" in page


def test_finished_cycles_are_a_chart_and_a_table(service: Service) -> None:
    for number in range(3):
        service.write(number * 50)
        service.run_cycle()
    page = service.browser().page("/")
    assert "Cycle 3 completed" in page
    assert "Durations of the last 3 cycles, of which 0 failed; the longest, cycle" in page
    assert len(re.findall(r'<rect class="bar is-completed" [^>]*><title>Cycle \d: completed in', page)) == 3
    assert re.findall(r'<th scope="row"><a href="/cycles/(\d)">', page) == ["3", "2", "1"]


def test_a_cycle_shows_its_checkpoints_as_a_timeline(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    page = service.browser().page("/cycles/1")
    assert "Cycle 1 completed" in page
    assert page.count("Attempt 1 by node: completed") == 4, "for each partition a title and a label"
    assert "100" in page
    assert "/cycles/2" not in page
    assert service.browser().page("/cycles/2", 404)
    assert service.browser().page("/cycles/many", 404)


def test_what_failed_is_told_with_its_partition(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    service.write(50)
    for path in Path(service.root).glob("tables/shop/items/*/compacted/_/rounds/*"):
        path.write_bytes(b"damaged")
    forget_logs(service.root)
    service.run_cycle()
    browser = service.browser()
    assert "Cycle 2 failed" in browser.page("/")
    page = browser.page("/cycles/2")
    assert "What failed" in page
    assert "shop/items/1/deltas/_" in page
    assert "cannot be read; `siltstone fsck shop.items` says why" in browser.page("/tables").replace("&#39;", "'")
    assert "cannot be read" in browser.page("/tables/shop.items")
    assert "cannot be read" not in browser.page("/tables/shop.orders")


def test_a_damaged_partition_is_named_beside_the_numbers_of_the_others(service: Service) -> None:
    table = make_table(service.root, "shop.days", partition_keys=["v"], primary_keys=["v", "id"])
    for number in range(2):
        table.write(pa.table({"id": range(number, number + 43), "v": ["<mon>"] * 42 + ["tue"]}))
        table.compact(engine="local")
    (monday,) = (each for each in table._destinations() if each.locator.partition_values == ["<mon>"])
    for path in Path(service.root, monday.folder, "log").iterdir():
        path.write_bytes(b"damaged")
    forget_logs(service.root)
    browser = service.browser()
    told = "has partitions that cannot be read: &lt;mon&gt;; `siltstone fsck shop.days` says why"
    for address, numbers in (("/tables", "round 2"), ("/tables/shop.days", "dead in files")):
        page = browser.page(address)
        assert told in page
        assert numbers in page
    metrics = browser.page("/metrics")
    assert 'siltstone_table_readable{table="shop.days"} 0.0' in metrics
    assert 'siltstone_table_rows{table="shop.days"} 2.0' in metrics


def test_tables_show_rows_backlog_and_amplification(service: Service) -> None:
    service.write(0, 100)
    service.run_cycle()
    service.write(0, 10)
    service.run_cycle()
    service.write(200)
    page = service.browser().page("/tables/shop.orders")
    for shown in (
        "10 dead in files",
        "1 delta",
        "of position 3",
        "1.10\N{MULTIPLICATION SIGN}",
        "Round 2: 100",
        "Buckets",
    ):
        assert shown in page
    listed = service.browser().page("/tables")
    assert "shop.items" in listed
    assert "shop.orders" in listed


@pytest.mark.parametrize("name", ["shop.none", "nosuch", "shop.%00", "%3Cscript%3E", "shop.orders%2F..%2F.."])
def test_an_unknown_table_is_no_page_and_its_name_is_not_repeated(service: Service, name: str) -> None:
    page = service.browser().get(f"/tables/{name}")
    assert page.status_code == 404
    assert "<script>" not in page.text


def test_controls_say_what_holds(service: Service) -> None:
    controls.freeze(service.database, requester="<b>ada</b>")
    page = service.browser().page("/")
    assert "Cycles are frozen" in page
    assert "Unfreeze" in page
    assert "by &lt;b&gt;ada&lt;/b&gt;" in page
    controls.disable(service.database)
    assert "Cycles are disabled" in service.browser().page("/")


def test_no_exception_text_reaches_the_browser(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = service.browser(raise_server_exceptions=False)
    for error, code in ((StorageError(SECRET), 503), (RuntimeError(SECRET), 500)):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("siltstone.web.pages.service_status", fail)
        monkeypatch.setattr("siltstone.web.table_pages.service_status", fail)
        monkeypatch.setattr("siltstone.web.api.service_status", fail)
        monkeypatch.setattr("siltstone.web.app.service_status", fail)
        monkeypatch.setattr("siltstone.web.api.measured_status", fail)
        for path in ("/", "/tables", "/api/status", "/metrics"):
            answer = browser.get(path)
            assert answer.status_code == code, path
            assert "hunter2" not in answer.text
            assert "Content-Security-Policy" in answer.headers
    monkeypatch.setattr("siltstone.web.app.service_status", lambda *_: (_ for _ in ()).throw(StorageError(SECRET)))
    assert (browser.get("/readyz").status_code, browser.get("/readyz").text) == (503, "failing\n")
    assert browser.get("/healthz").status_code == 200


def test_health_follows_the_node(service: Service) -> None:
    browser = service.browser()
    assert [browser.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
    service.is_alive = False
    assert [browser.get(path).status_code for path in ("/healthz", "/readyz")] == [503, 503]


def test_every_page_has_landmarks_a_title_and_captions(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    browser = service.browser(token="x" * 20)
    assert browser.press("/login", "/login", token="x" * 20) == 303
    table = "/tables/shop.orders"
    for path in (
        "/", "/cycles/1", "/tables", table, f"{table}/rows", f"{table}/keys?key.id=1", f"{table}/schema", "/api", "/login",
    ):  # fmt: skip
        page = browser.page(path)
        assert page.count("<main") == page.count("<h1") == page.count("· Siltstone</title>") == 1
        assert page.count("<table") == page.count("<caption")
        ids = re.findall(r' id="([^"]+)"', page)
        assert len(ids) == len(set(ids)), path
        assert "style=" not in page, "the content security policy refuses it"
        assert "<script>" not in page
        for label in re.findall(r'aria-labelledby="([^"]+)"', page):
            assert label in ids


def test_pages_load_nothing_from_elsewhere(service: Service) -> None:
    browser = service.browser()
    for path in ("/", "/tables", "/api", "/static/style.css", "/static/live.js", "/static/theme.js", "/static/page.js"):
        found = re.findall(r"(?:href|src|url|fetch)[=(]\W*(https?:)?//", browser.page(path))
        assert not found, path
    assert browser.get("/docs").status_code == browser.get("/redoc").status_code == 404


def test_a_notice_is_one_of_ours(service: Service) -> None:
    browser = service.browser()
    assert "A cycle was asked for" in browser.page("/?done=triggered")
    assert "evil" not in browser.page("/?done=evil").replace("evil/", "")


def test_what_is_not_known_is_a_dash() -> None:
    templates = make_templates()
    for name in ("bytes", "number", "ratio", "duration", "about", "time", "reason"):
        assert templates.from_string("{{ value | " + name + " }}").render(value=None) == "—"
    assert templates.from_string("{{ 3600000 | duration }}, {{ 2 | of('row') }}").render() == "1 h, 2 rows"


def test_a_trigger_shows_as_asked_for(service: Service) -> None:
    assert service.browser().press("/controls/trigger") == 303
    assert "1 cycle asked for." in service.browser().page("/")
    assert service.wakings == 1
    (request,) = service_status(service.database).pending_requests
    assert request.requester == "web from testclient"


def test_a_table_shows_the_folders_that_files_are_taken_from(service: Service, tmp_path: Path) -> None:
    service.write(1)
    browser = service.browser()
    assert "Files taken" not in browser.page("/tables/shop.orders")
    (drops := tmp_path / "<drops>").mkdir()
    (drops / "a.csv").write_text("id,v\n7,x\n")
    (drops / "<b>.csv").write_text("id,v\nx,x\n")
    table = siltstone.open(service.root).table("shop.orders")
    table.ingest(drops, quarantine=True, settle_seconds=0)
    page = browser.page("/tables/shop.orders")
    assert "Files taken" in page
    assert "&lt;drops&gt;</code>" in page
    assert "Rejected <code>&lt;b&gt;.csv</code>" in page
    (drops / "c.csv").write_text("id,v\nx,x\n")
    with pytest.raises(siltstone.InvalidInputError):
        table.ingest(drops, settle_seconds=0)
    assert 'class="error"' in browser.page("/tables/shop.orders")
    (report,) = browser.get("/api/tables/shop.orders/ingests").json()
    assert (report["files"], report["rejected"], report["waiting_files"]) == (1, 1, 0)
    assert "c.csv" in report["error"]
    assert browser.get("/api/tables/shop.nothing/ingests").status_code == 404


def test_a_table_shows_how_far_it_is_published_and_why_it_is_not(service: Service) -> None:
    browser = service.browser()
    service.write(1)
    service.run_cycle()
    assert "Published" not in browser.page("/tables/shop.orders")
    table = siltstone.open(service.root).table("shop.orders")
    table.alter(properties={"publish": "delta"}, add_columns={"<opens>": "time"})
    service.write(2)
    service.run_cycle()
    page = browser.page("/tables/shop.orders")
    assert "Not published as delta: shop.orders: &lt;opens&gt; has a type that Delta Lake does not have" in page
    (report,) = browser.get("/api/tables/shop.orders/published").json()
    assert (report["version"], report["behind_rounds"]) == (None, 2)
    assert report["oldest_unpublished_at"] is not None
    assert 'siltstone_table_publish_lag_rounds{format="delta",table="shop.orders"} 2.0' in browser.page("/metrics")
    assert 'siltstone_table_publish_failed{format="delta",table="shop.orders"} 1.0' in browser.page("/metrics")
    table.alter(drop_columns=["<opens>"])
    service.run_cycle()
    browser = service.browser()
    page = browser.page("/tables/shop.orders")
    assert "Published" in page
    assert "Not published" not in page
    (report,) = browser.get("/api/tables/shop.orders/published").json()
    assert (report["version"], report["behind_rounds"], report["error"]) == (0, 0, None)
    metrics = browser.page("/metrics")
    assert "siltstone_table_publish_oldest_pending_timestamp_seconds{" not in metrics
    for name in ("lag_rounds", "failed"):
        assert f'siltstone_table_publish_{name}{{format="delta",table="shop.orders"}} 0.0' in metrics
    assert browser.get("/api/tables/shop.nothing/published").status_code == 404
