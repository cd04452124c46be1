"""The demo of the service, with an engine of this process instead of Spark."""

import threading
from pathlib import Path

import pytest
from examples import demo_service

from siltstone.lake import Lake
from siltstone.rows.merge import run_here
from siltstone.service import cycle_records, default_address, open_database, trigger_cycle, wait_for_request
from tests.waiting import LIMIT_SECONDS


def test_the_demo_serves_a_shop_until_it_is_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_service, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(demo_service, "FIRST_ORDERS", 1000)
    lake, stopping = Lake(tmp_path / "lake"), threading.Event()
    database = open_database(default_address(lake.root))

    def stop_after_a_cycle() -> None:
        try:
            request = trigger_cycle(database)
            wait_for_request(database, request.request_id, timeout_seconds=LIMIT_SECONDS)
        finally:
            stopping.set()

    watcher = threading.Thread(target=stop_after_a_cycle)
    watcher.start()
    assert demo_service.play(tmp_path, stopping, port=0, engine=run_here)
    watcher.join()
    assert "Open http://127.0.0.1:" in capsys.readouterr().out
    records = cycle_records(database)
    database.close()
    assert records
    assert {record.status for record in records} == {"COMPLETED"}
    assert records[-1].trigger_reason == "request"
    assert [table.name for table in lake.tables()] == sorted(demo_service.SCHEMAS)
    assert lake.table("shop.orders").fsck(deep=True) == []
