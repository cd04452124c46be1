"""The JSON API and the metrics."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from siltstone.errors import StorageError
from siltstone.objects import LocalObjects
from siltstone.service.database import Transaction
from siltstone.service.schema import leader_lease, manager
from tests.unit.web.serving import Browser, Service

JSON = {"Content-Type": "application/json"}


def metrics(browser: Browser) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(browser.page("/metrics")):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_the_api_tells_what_the_pages_show(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    browser = service.browser()
    status = browser.get("/api/status").json()
    assert (status["status"], status["cycle_count"], status["completed"]) == ("COMPLETED", 1, 2)
    (record,) = browser.get("/api/cycles").json()
    assert (record["cycle_count"], record["status"], record["rows"]) == (1, "COMPLETED", 100)
    assert browser.get("/api/cycles", params={"status": "FAILED"}).json() == []
    details = browser.get("/api/cycles/1").json()
    assert {detail["status"] for detail in details["timeline"]} == {"COMPLETED"}
    assert [each["name"] for each in browser.get("/api/tables").json()] == ["shop.items", "shop.orders"]
    table = browser.get("/api/tables/shop.orders").json()
    assert (table["overview"]["rows"], table["rounds"][0]["table_rows"], table["bucket_count"]) == (50, 50, 1)
    assert browser.get("/api/nodes").json() == []


def test_a_request_can_be_followed(service: Service) -> None:
    browser = service.browser()
    answer = browser.post("/api/trigger", headers=JSON)
    assert answer.status_code == 202
    path = f"/api/requests/{answer.json()['request_id']}"
    assert browser.get(path).json()["state"] == "PENDING"
    service.run_cycle()
    assert browser.get(path).json()["outcome"] == "COMPLETED"


def test_controls(service: Service) -> None:
    browser = service.browser()
    assert browser.post("/api/freeze", json={"seconds": 60}).json()["name"] == "freeze"
    assert browser.get("/api/status").json()["frozen"]["requester"] == "api from testclient"
    assert browser.post("/api/unfreeze", headers=JSON).json() is True
    assert browser.post("/api/unfreeze", headers=JSON).json() is False
    assert browser.post("/api/disable", headers=JSON).json()["expires_at"] is None
    assert browser.post("/api/enable", headers=JSON).json() is True


def test_what_browsers_can_send_without_asking_is_refused(service: Service) -> None:
    browser = service.browser()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        assert browser.post("/api/disable", headers={"Content-Type": kind}, content=b"{}").status_code == 415
    assert browser.post("/api/disable").status_code == 415
    assert browser.get("/api/status").json()["disabled"] is None
    assert browser.get("/api/disable").status_code == 405


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/cycles/7", 404),
        ("/api/cycles/x", 422),
        ("/api/cycles/-1", 422),
        ("/api/cycles/99999999999999999999999", 404),
        ("/api/cycles/9223372036854775807", 404),
        ("/api/cycles/9223372036854775808", 404),
        (f"/api/cycles/{'9' * 5000}", 422),
        ("/api/cycles?limit=1000", 422),
        ("/api/cycles?limit=-1", 422),
        ("/api/cycles?limit=99999999999999999999999", 422),
        ("/api/tables/%00", 404),
        (f"/api/tables/shop.{'x' * 5000}", 404),
        ("/api/requests/%00", 404),
        ("/api/requests/%FF", 404),
        ("/api/tables/shop.none", 404),
        ("/api/requests/none", 404),
        ("/api/nosuch", 404),
    ],
)
def test_errors_are_json_in_our_own_words(service: Service, path: str, code: int) -> None:
    answer = service.browser().get(path)
    assert answer.status_code == code
    assert answer.json()["error"]["code"] == code
    assert service.root not in answer.text


@pytest.mark.parametrize("body", ['{"seconds": -1}', '{"seconds": "x"}', '{"seconds": 1e400}', "{", "[]"])
def test_bad_values_change_nothing(service: Service, body: str) -> None:
    browser = service.browser()
    assert browser.post("/api/freeze", content=body, headers=JSON).status_code == 422
    assert browser.get("/api/status").json()["frozen"] is None


@pytest.mark.parametrize("number", [-1, 7, -(1 << 63) - 1, 1 << 63, 10**30])
def test_a_cycle_that_cannot_be_has_no_page(service: Service, number: int) -> None:
    assert service.browser().get(f"/cycles/{number}").status_code == 404


@pytest.mark.parametrize("path", ["freeze", "trigger", "unfreeze", "disable", "enable"])
def test_a_field_that_there_is_none_of_is_named_and_changes_nothing(service: Service, path: str) -> None:
    browser = service.browser()
    answer = browser.post(f"/api/{path}", json={"for_seconds": 60})
    assert answer.status_code == 422
    assert answer.json()["error"]["message"].startswith("Unknown body.for_seconds; ")
    status = browser.get("/api/status").json()
    assert (status["frozen"], status["disabled"], status["pending_requests"]) == (None, None, [])


@pytest.mark.parametrize("path", ["status", "cycles", "cycles/1", "tables", "nodes", "requests/none"])
def test_a_parameter_that_there_is_none_of_is_named(service: Service, path: str) -> None:
    answer = service.browser().get(f"/api/{path}", params={"limits": "5"})
    assert answer.status_code == 422
    assert "query.limits" in answer.json()["error"]["message"]


def test_controls_take_no_parameters_in_the_address(service: Service) -> None:
    browser = service.browser()
    assert browser.post("/api/freeze?seconds=60", headers=JSON).status_code == 422
    assert browser.get("/api/status").json()["frozen"] is None


def test_an_empty_body_says_what_no_body_says(service: Service) -> None:
    browser = service.browser()
    for body in (None, b"{}", b"null"):
        assert browser.post("/api/disable", headers=JSON, content=body).status_code == 200
        assert browser.post("/api/enable", headers=JSON, content=body).json() is True


def test_the_api_describes_itself(service: Service) -> None:
    browser = service.browser()
    described = browser.get("/api/openapi.json").json()
    assert set(described["paths"]) == {
        "/api/status", "/api/cycles", "/api/cycles/{cycle}", "/api/tables", "/api/tables/{name}",
        "/api/tables/{name}/ingests", "/api/tables/{name}/published", "/api/nodes", "/api/node",
        "/api/tables/{name}/schema", "/api/tables/{name}/readers", "/api/tables/{name}/rows", "/api/tables/{name}/keys",
        "/api/tables/{name}/documents",
        "/api/tables/{name}/compact", "/api/tables/{name}/pause", "/api/tables/{name}/resume", "/api/audit", "/api/tables/{name}/health",
        "/api/requests/{request_id}", "/api/trigger", "/api/freeze", "/api/unfreeze", "/api/disable", "/api/enable",
    }  # fmt: skip
    assert "ServiceStatus" in described["components"]["schemas"]
    page = browser.page("/api")
    assert all(path in page for path in described["paths"])


def test_metrics_of_cycles_and_tables(service: Service) -> None:
    service.write(0)
    service.begin()
    before = metrics(service.browser())
    assert before["siltstone_cycle_running"] == 1
    assert before["siltstone_checkpoints{idle}"] == 2
    assert before["siltstone_table_backlog_deltas{shop.orders}"] == 1
    assert before["siltstone_table_backlog_bytes{shop.orders}"] > 0
    assert before["siltstone_table_backlog_oldest_timestamp_seconds{shop.orders}"] > 0
    assert "siltstone_cycle_last_completion_timestamp_seconds" not in before
    while service.worker.step():
        pass
    service.leader.tick()
    after = metrics(service.browser())
    assert (
        after["siltstone_cycle_last_start_timestamp_seconds"] == before["siltstone_cycle_last_start_timestamp_seconds"]
    )
    assert (
        after["siltstone_cycle_last_completion_timestamp_seconds"]
        >= after["siltstone_cycle_last_start_timestamp_seconds"]
    )
    assert after["siltstone_cycles_total{completed}"] == 1
    assert after["siltstone_cycles_total{failed}"] == 0
    assert after["siltstone_cycle_last_duration_seconds"] > 0
    assert after["siltstone_table_rows{shop.orders}"] == 50
    assert after["siltstone_compacted_rows_total"] == 100
    assert after["siltstone_written_bytes_total"] > 0
    assert after["siltstone_evictions_total"] == 0
    assert after["siltstone_table_backlog_deltas{shop.orders}"] == 0
    assert "siltstone_table_backlog_oldest_timestamp_seconds{shop.orders}" not in after
    assert after["siltstone_healthy"] == 1
    assert after["siltstone_tables"] == 2


def test_metrics_of_cycles_survive_a_lake_that_does_not_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("s3://key:secret@bucket does not answer")

    monkeypatch.setattr("siltstone.lake.Lake.report", fail)
    found = metrics(service.browser())
    assert "siltstone_cycle_running" in found
    assert not any(name.startswith("siltstone_table_") for name in found)
    answer = service.browser(raise_server_exceptions=False).get("/tables")
    assert answer.status_code == 503
    assert "secret" not in answer.text


def test_the_metrics_show_how_far_the_clock_is_from_the_database_and_from_a_store_that_has_one(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = metrics(service.browser())
    assert "siltstone_clock_skew_seconds{database}" in found
    assert "siltstone_clock_skew_seconds{store}" not in found, "a disk has no clock of its own"
    monkeypatch.setattr(LocalObjects, "skew_ms", lambda objects: -3_600_000)
    assert metrics(service.browser())["siltstone_clock_skew_seconds{store}"] == -3600


def test_a_service_without_a_leader_is_unhealthy_in_words_and_metrics(service: Service) -> None:
    service.write(0)
    service.run_cycle()
    found = metrics(service.browser())
    assert (found["siltstone_healthy"], found["siltstone_leaders"]) == (1, 1)

    def long_ago(transaction: Transaction) -> None:
        transaction.execute(manager.update().values(last_started_at=0))
        transaction.execute(leader_lease.update().values(lease_until=0))

    service.database.change("let it be long ago", long_ago)
    found = metrics(service.browser())
    assert (found["siltstone_healthy"], found["siltstone_leaders"]) == (0, 0)
    assert "no node leads" in service.browser().get("/api/status").json()["health_problem"]
    assert "a cycle is overdue, and no node leads" in service.browser().page("/")
